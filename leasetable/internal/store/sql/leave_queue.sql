-- Deletes the ticket $3 of the client $2 from the queue for the name $1; -1 stands for any ticket
-- of that client. If the lock is free and $4 is true, it notifies the next waiter: the release may
-- have notified the client that leaves.
--
-- Returns at most one row: whether a waiter was notified.
--
-- The row is deleted before the function looks for the next waiter: the function's row needs the
-- count of deleted rows first, and a volatile function sees the earlier effects of its statement.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), gone AS (
    DELETE FROM pglock.lock_waiters AS w
    USING async
    WHERE w.name = $1::text AND w.client = $2::text AND (w.ticket = $3::bigint OR $3::bigint = -1)
    RETURNING w.ticket
)
SELECT CASE WHEN $4::boolean THEN pglock.wake_next(l.name, l.ticket) ELSE false END
FROM (SELECT count(*) FROM gone) AS g, pglock.distributed_locks AS l
WHERE l.name = $1::text AND l.expires_at <= clock_timestamp()
