-- Draws a ticket for the client $3 in the queue for the name $1, for $2 permits, valid for $4 microseconds. It
-- replaces an earlier one of this client. Its caller waits as the holder $5, for $6 microseconds so far. If as
-- many as $7 and the name's permits wait before it, it is put into the overflow list instead.
--
-- Returns the ticket, whether it is in the overflow list, the number of other waiters, whether the
-- lock is free, and otherwise the remaining microseconds of its grant. A concurrent release may not
-- see the ticket, and this statement may not see the release. So a head tries again afterwards.
--
-- It does not wait for its commit: a crash empties the queue anyway. A function of the same steps
-- takes twice as long.
WITH seen AS MATERIALIZED (
    SELECT pglock.next_ticket() AS ticket, l.expires_at, q.queue, q.overflow, q.queue + q.overflow >= $7::bigint + coalesce(l.capacity, 0) AS crowded
    FROM (SELECT) AS one
    LEFT JOIN pglock.distributed_locks AS l ON l.name = $1::text
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.state = 'queued' AND w.ticket > coalesce(l.ticket, 0)) AS queue, count(*) FILTER (WHERE w.state = 'overflow') AS overflow
        FROM pglock.lock_waiters AS w
        WHERE w.name = $1::text AND w.client <> $3::text AND w.expires_at > clock_timestamp()) AS q
    WHERE pglock.commit_lazily()
), joined AS (
    INSERT INTO pglock.lock_waiters AS w (name, client, ticket, state, expires_at, since, holder, weight)
    SELECT $1::text, $3::text, s.ticket, CASE WHEN s.crowded THEN 'overflow' ELSE 'queued' END::pglock.waiter_state, clock_timestamp() + $4::bigint * interval '1 microsecond',
           clock_timestamp() - $6::bigint * interval '1 microsecond', $5::text, $2::int
    FROM seen AS s
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, state = excluded.state, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
            weight = excluded.weight
)
SELECT s.ticket, s.crowded, s.queue + CASE WHEN s.crowded THEN s.overflow ELSE 0 END,
       coalesce(s.expires_at <= clock_timestamp(), true),
       CASE WHEN s.expires_at > clock_timestamp() THEN (extract(epoch FROM s.expires_at - clock_timestamp()) * 1000000)::bigint ELSE 0 END
FROM seen AS s
