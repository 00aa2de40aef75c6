-- Removes all locks, held ones too: stop their holders first.
DROP FUNCTION pglock_schema_version();
DROP FUNCTION prune_gate();
DROP FUNCTION lift_fencing_tokens();
DROP FUNCTION next_fencing_token();
DROP TABLE lock_waiters;
DROP TABLE distributed_locks;
DROP SEQUENCE fencing_tokens;
