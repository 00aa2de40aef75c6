-- Deletes the ticket $3 of the client $2 from the queues for the names $1; null stands for any ticket
-- of that client. If $4 is true, it notifies the next waiters for each of the names that is free:
-- the release may have notified the client that leaves, and others may have waited behind it for room.
--
-- Returns one row for each free name: whether a waiter was notified. Rows are locked in the order of
-- names: see refresh_tickets.sql.
--
-- The queue skips a head that could have been granted for one and a half seconds. For the one behind
-- the head, that time begins when the head leaves (room_since), unless a lock with one holder is held.
--
-- The row is deleted before the function looks for the next waiter: the function's row needs the
-- count of deleted rows first, and a volatile function sees the earlier effects of its statement.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '250ms', true)
), mine AS MATERIALIZED (
    SELECT w.name
    FROM pglock.lock_waiters AS w
    WHERE w.name = ANY ($1::text[]) AND w.client = $2::text
    ORDER BY w.name COLLATE "C"
    FOR UPDATE
), gone AS (
    DELETE FROM pglock.lock_waiters AS w
    USING async, mine AS m
    WHERE w.name = m.name AND w.client = $2::text AND (w.ticket = $3::bigint OR $3::bigint IS NULL)
    RETURNING w.name, w.state, w.ticket
), head_left AS (
    UPDATE pglock.distributed_locks AS l
    SET room_since = clock_timestamp(), version = pglock.next_version(l.version)
    FROM gone AS g
    WHERE l.name = g.name AND (l.capacity > 0 OR l.expires_at <= clock_timestamp()) AND g.state = 'queued' AND g.ticket > l.ticket
      AND NOT EXISTS (SELECT FROM pglock.queue(l.name, l.ticket) AS w WHERE w.ticket < g.ticket)
      AND EXISTS (SELECT FROM pglock.queue(l.name, g.ticket))
)
SELECT CASE WHEN $4::boolean THEN pglock.wake_next(l.name, l.ticket, l.capacity - l.in_use) ELSE false END
FROM (SELECT count(*) FROM gone) AS g, pglock.distributed_locks AS l
WHERE l.name = ANY ($1::text[]) AND l.expires_at <= clock_timestamp()
