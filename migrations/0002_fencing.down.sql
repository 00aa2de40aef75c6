-- Unprotects all tables, removes the functions and marks of fencing, and what other roles have built on them.
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
DROP VIEW protected_tables, schedules CASCADE;
DROP FUNCTION grant_owner, unprotect, protect, template_parts, require_table, create_triggers, drop_triggers, protection_of,
    table_and_partitions, trigger_arguments, fence_truncate_rows, fence_truncate, fence_attached, fence_moved, fence_changed,
    fence_stamp, fence_rows, judge_rows, bound_grants, lock_name_expression, raise_unfenced, grant_reader, revoke_role, grant_user, grant_writer,
    grant_on, advance, require_bound, bind, guard, check_fence, idle_limit, require_fence, raise_stale, unsealed, fencing_seal, high_water_limit CASCADE;
DROP TABLE fencing_high_water, fencing_secret CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
