-- Ends the grants of the name $1, or that with the token $2 if it is not 0, frees their permits, and wakes those
-- who wait.
UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE name = $1 AND holder IS NOT NULL AND expires_at > clock_timestamp() AND $2::bigint IN (0, token);
UPDATE pglock.lock_permits SET expires_at = clock_timestamp() WHERE name = $1 AND holder IS NOT NULL AND expires_at > clock_timestamp() AND $2::bigint IN (0, token);
SELECT pglock.free_expired_permits(name) FROM pglock.distributed_locks WHERE name = $1 AND capacity > 0 AND $2::bigint = $2;
SELECT pglock.wake_next(name, ticket, capacity - in_use) FROM pglock.distributed_locks
WHERE name = $1 AND $2::bigint = $2 AND expires_at <= clock_timestamp()
