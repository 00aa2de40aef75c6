-- Removes all locks, held ones too: stop their holders first.
DROP FUNCTION pglock_schema_version();
DROP FUNCTION advisory_key(text, text);
DROP FUNCTION wake_each(text[], bigint[]);
DROP FUNCTION wake_next(text, bigint);
DROP FUNCTION prune_gate();
DROP FUNCTION lift_fencing_tokens();
DROP FUNCTION next_fencing_token();
DROP TABLE fencing_epoch;
DROP TABLE lock_waiters;
DROP TABLE distributed_locks;
DROP DOMAIN lock_name;
DROP SEQUENCE fencing_tokens;
