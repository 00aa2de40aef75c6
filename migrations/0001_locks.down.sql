-- Removes all locks, held ones too: stop their holders first. CASCADE also removes the objects that
-- any role with USAGE may have built on the functions and types, so that they can't block this.
DROP FUNCTION join_all(text[], integer[], integer[], text, bigint, bigint, text, bigint, boolean),
    acquire_slots(text[], integer[], integer[], uuid, text, jsonb, bigint, bigint, boolean), create_free(text[], integer[]),
    resize_permits(text, integer, boolean), upgrade_permits(text, bigint, uuid, text, jsonb, bigint), keep_permits(text, bigint, integer, boolean),
    await_permit_guards(text, bigint, boolean), release_permits(text, bigint, boolean, text, text), share_grant(text, integer),
    free_expired_permits(text), add_room(text, bigint), commit_durably(), wake_fitting(text, bigint, integer), head_weight(text, bigint) CASCADE;
DROP FUNCTION pglock_schema_version() CASCADE;
DROP FUNCTION pin_functions(text[], text), revoke_defaults(regnamespace) CASCADE;
DROP FUNCTION advisory_key(text, text) CASCADE;
DROP FUNCTION wake_each(text[], bigint[]) CASCADE;
DROP FUNCTION wake_next(text, bigint) CASCADE;
DROP FUNCTION require_unpruned(bigint) CASCADE;
DROP FUNCTION raise_pruned(bigint) CASCADE;
DROP FUNCTION lift_fencing_tokens(text) CASCADE;
DROP FUNCTION next_fencing_token() CASCADE;
DROP VIEW locks_waiting CASCADE;
DROP VIEW locks_held CASCADE;
DROP TABLE fencing_epoch CASCADE;
DROP TABLE lock_permits CASCADE;
DROP TABLE lock_waiters CASCADE;
DROP TABLE distributed_locks CASCADE;
DROP DOMAIN lock_name CASCADE;
DROP DOMAIN wake_channel CASCADE;
DROP DOMAIN finite_time CASCADE;
DROP DOMAIN lease_end CASCADE;
DROP DOMAIN permit_count CASCADE;
DROP DOMAIN permit_sum CASCADE;
DROP DOMAIN token_value CASCADE;
DROP SEQUENCE fencing_tokens CASCADE;
