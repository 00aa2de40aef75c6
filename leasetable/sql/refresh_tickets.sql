-- Makes the tickets of the clients $1 for the names $2 expire $3 microseconds from now, and looks at the
-- locks for them. Those of callers that wait for several names are not skipped for $4 microseconds.
--
-- A client in line before the queue draws its ticket if fewer than $5 and the name's permits wait before it, or
-- if the lock is free and its queue is empty: lock_waiters describes the line.
--
-- Returns name, client and ticket of each one found, 0 if the queue has skipped it; the number of waiters
-- before it; whether there is room for it by itself, and otherwise the remaining microseconds of the grant
-- in the way, of several the one that ends first.
--
-- Rows are locked in the order of names, like those of the other statements about several rows:
-- they can't deadlock.
WITH mine AS MATERIALIZED (
    SELECT w.name, w.client, w.ticket, CASE WHEN w.ticket < -1 THEN -1 - w.ticket ELSE w.ticket END AS place, w.weight, a.us, a.near
    FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $5::bigint[])) AS a (client, name, us, near)
    JOIN pglock.lock_waiters AS w ON w.name = a.name AND w.client = a.client
    WHERE set_config('synchronous_commit', 'off', true) = 'off'
    ORDER BY w.name COLLATE "C", w.client
    FOR UPDATE OF w
), seen AS MATERIALIZED (
    SELECT m.name, m.client, m.us, m.ticket BETWEEN 0 AND l.ticket AS skipped, e.enters, f.free,
           CASE WHEN e.enters THEN q.all_queue ELSE q.queue + q.line END AS ahead,
           CASE WHEN f.free THEN 0 ELSE greatest((extract(epoch FROM greatest(l.expires_at, p.ends) - clock_timestamp()) * 1000000)::bigint, 1) END AS remaining
    FROM mine AS m
    LEFT JOIN pglock.distributed_locks AS l ON l.name = m.name
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.ticket > coalesce(l.ticket, 0)) AS all_queue,
               count(*) FILTER (WHERE w.ticket > coalesce(l.ticket, 0) AND w.ticket < m.place) AS queue,
               count(*) FILTER (WHERE w.ticket < -1 AND w.ticket > m.ticket) AS line
        FROM pglock.lock_waiters AS w
        WHERE w.name = m.name AND w.client <> m.client AND w.expires_at > clock_timestamp()) AS q
    CROSS JOIN LATERAL (
        SELECT min(p.expires_at) AS ends FROM pglock.lock_permits AS p WHERE l.capacity > 0 AND p.name = m.name) AS p
    CROSS JOIN LATERAL (
        SELECT coalesce(l.expires_at <= clock_timestamp()
                        AND (l.capacity IS NULL OR l.capacity - l.in_use >= m.weight OR p.ends <= clock_timestamp()), true) AS free) AS f
    CROSS JOIN LATERAL (
        SELECT m.ticket < -1 AND (q.queue + q.line < m.near + coalesce(l.capacity, 0) OR f.free AND q.all_queue = 0) AS enters) AS e
)
UPDATE pglock.lock_waiters AS w
SET expires_at = clock_timestamp() + s.us * interval '1 microsecond',
    keep_until = CASE WHEN position('/' IN w.client) > 0 THEN clock_timestamp() + $4::bigint * interval '1 microsecond' ELSE w.keep_until END,
    ticket = CASE WHEN s.enters THEN pglock.next_ticket() ELSE w.ticket END
FROM seen AS s
WHERE w.name = s.name AND w.client = s.client
RETURNING w.name, w.client, CASE WHEN s.skipped THEN 0 ELSE w.ticket END, s.ahead, s.free, s.remaining
