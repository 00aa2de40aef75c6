-- Removes the statements of semaphores, readers-writer locks and several names.
DROP FUNCTION join_all(text[], text, bigint, bigint, text, bigint, boolean), acquire_all(text[], uuid, text, jsonb, bigint, bigint), create_free(text[]) CASCADE;
DROP FUNCTION resize_permits(text, integer, boolean), upgrade_permits(text, bigint, uuid, text, jsonb, bigint), downgrade_permits(text, bigint, boolean),
    await_permit_guards(text, bigint, boolean), release_permits(text, bigint, boolean, text, text), acquire_permits(text, integer, integer, uuid, text, jsonb, bigint, bigint, boolean),
    share_grant(text, integer), grant_all_permits(text, uuid, text, jsonb, bigint, bigint),
    free_expired_permits(text), commit_durably(), wake_if_fits(text, bigint, integer, integer), head_weight(text, bigint) CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
