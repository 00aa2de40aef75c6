-- Unprotects all tables.
DO $unprotect$
DECLARE
    t regclass;
BEGIN
    FOR t IN SELECT protected FROM protected_tables LOOP
        -- Objects of other roles on a table, such as a view on its token column, must not block this. The triggers go with their functions in any case.
        BEGIN
            PERFORM unprotect(t);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'pglock: the token column of % remains: %', t, SQLERRM;
        END;
    END LOOP;
END
$unprotect$;
DROP VIEW protected_tables CASCADE;
DROP FUNCTION grant_owner, unprotect, protect, template_parts, require_table, create_triggers, drop_triggers, protection_of, table_and_partitions,
    trigger_arguments CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 6';
