-- Removes all locks, held ones too: stop their holders first. CASCADE also removes the objects that
-- any role with USAGE may have built on the functions and types, so that they can't block this.
DROP FUNCTION pglock_schema_version, pglock_oldest_client, unsafe_server, pin_functions, revoke_defaults, above_pruned, raise_pruned, lift_fencing_tokens, lift_sequence,
    evidence_bound, commit_durably, commit_lazily, next_version, next_ticket, next_fencing_token, wal_timeline, cluster_identifier CASCADE;
DROP TABLE fencing_epoch, lock_permits, lock_waiters, distributed_locks CASCADE;
DROP TYPE waiter_state CASCADE;
DROP FUNCTION token_follows, highest_token CASCADE;
DROP DOMAIN lock_name, wake_channel, finite_time, lease_end, permit_count, permit_sum, token_value CASCADE;
DROP SEQUENCE fencing_tokens CASCADE;
