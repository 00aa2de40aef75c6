-- Makes all grants and tickets older by $1. Those who wait for what is free then are woken before their tickets
-- are too old.
UPDATE pglock.distributed_locks SET acquired_at = acquired_at - $1::interval, ended_at = ended_at - $1::interval,
    room_since = room_since - $1::interval, expires_at = expires_at - $1::interval;
UPDATE pglock.lock_permits SET acquired_at = acquired_at - $1::interval, expires_at = expires_at - $1::interval;
SELECT pglock.free_expired_permits(name) FROM pglock.distributed_locks WHERE capacity > 0 AND $1::interval = $1;
SELECT pglock.wake_next(name, ticket, capacity - in_use) FROM pglock.distributed_locks WHERE expires_at <= clock_timestamp() AND $1::interval = $1;
UPDATE pglock.lock_waiters SET since = since - $1::interval, expires_at = expires_at - $1::interval, keep_until = keep_until - $1::interval
WHERE state <> 'watching';
UPDATE pglock.once_keys SET created_at = created_at - $1::interval, started_at = started_at - $1::interval, expires_at = expires_at - $1::interval
