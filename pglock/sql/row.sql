-- The end of get.sql, list.sql and survey.sql: the columns of the rows in "step", and what the queue and
-- the permits of each say.
--
-- Returns one row or more. Each has the number of rows read, the last name among them and how many
-- of them match, then the name of a matching lock, or null without one, and its columns; of the
-- last grant that is over the holder, how and when it ended, and the reason if it was revoked; the
-- reason of a request to release the lock; its waiters in their order, with the ticket 0 for one in
-- the overflow list; the number of its permits; its shared grants; and whether this is a standby. Times are in microseconds. A
-- role may have written texts and labels of any size: see the view locks_held.
SELECT s.seen, s.last, s.matching, s.name::text, s.token, s.version, coalesce(left(s.holder, 512), ''), CASE WHEN octet_length(s.labels::text) < 65536 THEN s.labels::text ELSE '{}' END, s.acquired_at,
       CASE WHEN s.expires_at > s.read_at THEN (extract(epoch FROM s.expires_at - s.read_at) * 1000000)::bigint ELSE 0 END,
       (extract(epoch FROM s.read_at - s.acquired_at) * 1000000)::bigint,
       coalesce(left(CASE WHEN x.expired THEN s.holder ELSE s.last_holder END, 512), ''),
       coalesce(CASE WHEN x.expired THEN 'expired' ELSE left(s.last_end, 512) END, ''),
       CASE WHEN x.expired THEN nullif(s.expires_at, '-infinity') ELSE s.ended_at END,
       coalesce(CASE WHEN s.last_end = 'revoked' AND NOT x.expired THEN left(s.revoked_reason, 512) END, ''),
       CASE WHEN s.holder IS NOT NULL AND s.expires_at > s.read_at THEN left(s.release_request, 512) END,
       q.holders, q.tickets, q.waited, q.weights,
       coalesce(s.capacity, 0), g.tokens, g.weights, g.holders, g.labels, g.since, g.remaining, g.ages, g.requests, pg_is_in_recovery()
FROM step AS s
CROSS JOIN LATERAL (SELECT s.holder IS NOT NULL AND s.expires_at <= s.read_at AS expired) AS x
CROSS JOIN LATERAL (
    SELECT array_agg(left(w.holder, 512) ORDER BY w.state, w.ticket) AS holders,
           array_agg(CASE w.state WHEN 'queued' THEN w.ticket ELSE 0 END ORDER BY w.state, w.ticket) AS tickets,
           array_agg((extract(epoch FROM s.read_at - w.since) * 1000000)::bigint ORDER BY w.state, w.ticket) AS waited,
           array_agg(w.weight::bigint ORDER BY w.state, w.ticket) AS weights
    FROM pglock.lock_waiters AS w
    WHERE w.name = s.name AND (w.state = 'queued' AND w.ticket > s.ticket OR w.state = 'overflow') AND w.expires_at > s.read_at
) AS q
CROSS JOIN LATERAL (
    SELECT array_agg(p.token ORDER BY p.token) AS tokens, array_agg(p.weight ORDER BY p.token) AS weights,
           array_agg(left(p.holder, 512) ORDER BY p.token) AS holders, array_agg(CASE WHEN octet_length(p.labels::text) < 65536 THEN p.labels::text ELSE '{}' END ORDER BY p.token) AS labels,
           array_agg(p.acquired_at::timestamptz ORDER BY p.token) AS since,
           array_agg((extract(epoch FROM p.expires_at - s.read_at) * 1000000)::bigint ORDER BY p.token) AS remaining,
           array_agg((extract(epoch FROM s.read_at - p.acquired_at) * 1000000)::bigint ORDER BY p.token) AS ages,
           array_agg(left(p.release_request, 512) ORDER BY p.token) AS requests
    FROM pglock.lock_permits AS p
    WHERE s.capacity > 0 AND p.name = s.name AND p.holder IS NOT NULL AND p.expires_at > s.read_at
) AS g
ORDER BY s.place
