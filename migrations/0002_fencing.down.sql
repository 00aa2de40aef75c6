-- Unprotects all tables, and removes what other roles have built on the functions.
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
DROP FUNCTION grant_owner(text), unprotect(regclass), protect(regclass, text, boolean, text), template_parts(regclass, text), require_table(regclass),
    create_triggers(regclass, text[]), drop_triggers(regclass), protection_of(regclass), table_and_partitions(regclass), trigger_arguments(oid), fence_truncate_rows(), fence_truncate(),
    fence_attached(), fence_moved(), fence_changed(), fence_stamp(), fence_rows(), judge_rows(jsonb, text, bigint, bigint, bigint, text, text, text), bound_grants(),
    lock_name_expression(text[], text), raise_unfenced(text, text, text) CASCADE;
-- Removes the functions and marks of fencing, and what other roles have built on them.
ALTER DOMAIN token_value DROP CONSTRAINT room_for_further_grants;
DROP FUNCTION grant_user(text), grant_writer(text), require_right(boolean, text), grant_on(text, text, text, text[]), token_follows(bigint), advance(text, bigint), require_bound(text, bigint), bind(text, bigint),
    guard(text, bigint), check_fence(text, bigint), idle_limit(bigint), require_fence(text, bigint), raise_stale(text, bigint, bigint),
    fencing_seal(bytea, text), high_water_limit() CASCADE;
DROP TABLE fencing_high_water, fencing_secret CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
