-- Makes all grants and tickets older by $1, and wakes those who wait for a lock that is free then.
WITH locks AS (
    UPDATE pglock.distributed_locks AS l
    SET acquired_at = l.acquired_at - $1::interval, ended_at = l.ended_at - $1::interval, room_since = l.room_since - $1::interval,
        expires_at = l.expires_at - $1::interval
    RETURNING l.name, l.ticket, l.capacity - l.in_use AS room, l.expires_at
), permits AS (
    UPDATE pglock.lock_permits AS p SET acquired_at = p.acquired_at - $1::interval, expires_at = p.expires_at - $1::interval
), waiters AS (
    UPDATE pglock.lock_waiters AS w SET since = w.since - $1::interval, expires_at = w.expires_at - $1::interval, keep_until = w.keep_until - $1::interval
    WHERE w.ticket <> -1
)
SELECT count(*) FROM locks AS l WHERE l.expires_at <= clock_timestamp() AND pglock.wake_next(l.name, l.ticket, l.room)
