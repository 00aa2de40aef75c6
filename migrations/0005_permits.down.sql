-- Removes the statements of semaphores, readers-writer locks and several names.
DROP FUNCTION join_all(text[], integer[], integer[], text, bigint, bigint, text, bigint, boolean),
    acquire_slots(text[], integer[], integer[], uuid, text, jsonb, bigint, bigint, boolean), create_free(text[], integer[]),
    resize_permits(text, integer, boolean), upgrade_permits(text, bigint, uuid, text, jsonb, bigint), keep_permits(text, bigint, integer, boolean),
    await_permit_guards(text, bigint, boolean), release_permits(text, bigint, boolean, text, text), share_grant(text, integer),
    free_expired_permits(text), add_room(text, bigint), commit_durably(), wake_fitting(text, bigint, integer), head_weight(text, bigint) CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
