-- Draws one ticket for a caller, the client $3, in the queues of all the names $1, which are sorted by their
-- bytes, for $2 permits of each, valid for $4 microseconds, and not skipped for $5. It replaces an earlier
-- ticket of the caller, which waits as the holder $6, for $7 microseconds so far.
--
-- Returns for each name the ticket, which is drawn in a sub-select of its own and therefore the same, the number
-- of other waiters, whether the name is free, otherwise the remaining microseconds of its grant, and whether
-- a waiter was notified. The rows are written in the order of names, like those of refresh_tickets.sql.
-- Otherwise it is like join.sql.
--
-- docs/reference/protocol.md says why there is neither deadlock nor starvation. A caller whose
-- ticket was skipped at one name was perhaps the head at another one, which is free. If $8, the
-- next waiter there learns of it, after all rows are written.
WITH seen AS MATERIALIZED (
    SELECT a.name, a.weight, (SELECT pglock.next_ticket()) AS drawn, l.ticket, l.expires_at, l.capacity - l.in_use AS room,
           (SELECT count(*) FROM pglock.queue(a.name, coalesce(l.ticket, 0)) AS w WHERE w.client <> $3::text) AS ahead
    FROM unnest((SELECT $1::text[]), (SELECT $2::int[])) AS a (name, weight)
    LEFT JOIN LATERAL (SELECT l.* FROM pglock.distributed_locks AS l WHERE l.name = a.name OFFSET 0) AS l ON true
    WHERE pglock.commit_lazily()
), joined AS (
    INSERT INTO pglock.lock_waiters AS w (name, client, ticket, expires_at, since, holder, weight, keep_until)
    SELECT s.name, $3::text, s.drawn, clock_timestamp() + $4::bigint * interval '1 microsecond',
           clock_timestamp() - $7::bigint * interval '1 microsecond', $6::text, s.weight,
           clock_timestamp() + $5::bigint * interval '1 microsecond'
    FROM seen AS s
    ORDER BY s.name COLLATE "C"
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, state = excluded.state, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
            weight = excluded.weight, keep_until = excluded.keep_until
    RETURNING w.ticket
)
SELECT j.ticket, s.ahead, coalesce(s.expires_at <= clock_timestamp(), true),
       CASE WHEN s.expires_at > clock_timestamp() THEN (extract(epoch FROM s.expires_at - clock_timestamp()) * 1000000)::bigint ELSE 0 END,
       CASE WHEN $8::boolean AND s.expires_at <= clock_timestamp()
                 AND (SELECT w.ticket FROM pglock.lock_waiters AS w WHERE w.name = s.name AND w.client = $3::text) > s.ticket
            THEN pglock.wake_next(s.name, s.ticket, s.room) END
FROM seen AS s CROSS JOIN (SELECT max(ticket) AS ticket FROM joined) AS j
