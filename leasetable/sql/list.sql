-- Reads the next 500 rows after the name $1 in the order of the primary key, and returns those that
-- match all conditions:
--
--   $2  held locks only
--   $3  the prefix of the name, or ''
--   $4  a pattern of LIKE for the name, or ''
--   $5  the holder, or ''
--   $6  labels, jsonb: all of them must match
--
-- Of a lock with permits, one grant must match the last two.
--
-- Returns one row or more. Each has the number of rows read and the last name among them, then the
-- name of a matching lock, or null if none matches, its token, version, holder, labels, time of the
-- grant, remaining microseconds, microseconds since the grant; the holder of the last grant that is
-- over, how and when it ended, and the reason if it was revoked; the reason of a request to release
-- the lock; the names, tickets and waited microseconds of its waiters in their order; the number of its
-- permits; and of each shared grant the token, weight, holder, labels, time, remaining microseconds,
-- microseconds since the grant, and the reason of a request to release it.
--
-- A step costs the same however many rows there are. 500 is a constant, so that the planner walks
-- the index instead of sorting the table. The snapshot ends with the statement.
WITH step AS MATERIALIZED (
    SELECT l.*, clock_timestamp() AS read_at
    FROM pglock.distributed_locks AS l
    WHERE l.name > $1::text
    ORDER BY l.name
    LIMIT 500
), page AS MATERIALIZED (
    SELECT count(*) AS seen, coalesce(max(s.name), '') AS last
    FROM step AS s
), matching AS MATERIALIZED (
    SELECT s.*
    FROM step AS s
    WHERE starts_with(s.name, $3::text)
      AND ($4::text = '' OR s.name LIKE $4::text)
      AND ((s.holder IS NOT NULL AND s.expires_at > s.read_at OR NOT $2::boolean)
               AND ($5::text = '' OR s.holder = $5::text)
               AND s.labels @> $6::text::jsonb
           OR s.capacity IS NOT NULL AND EXISTS (
               SELECT FROM pglock.lock_permits AS p
               WHERE p.name = s.name AND p.holder IS NOT NULL AND p.expires_at > s.read_at
                 AND ($5::text = '' OR p.holder = $5::text)
                 AND p.labels @> $6::text::jsonb))
)
SELECT p.seen, p.last::text, s.name::text, s.token, s.version, coalesce(s.holder, ''), s.labels::text, s.acquired_at,
       CASE WHEN s.expires_at > s.read_at THEN (extract(epoch FROM s.expires_at - s.read_at) * 1000000)::bigint ELSE 0 END,
       (extract(epoch FROM s.read_at - s.acquired_at) * 1000000)::bigint,
       coalesce(CASE WHEN x.expired THEN s.holder ELSE s.last_holder END, ''),
       coalesce(CASE WHEN x.expired THEN 'expired' ELSE s.last_end END, ''),
       CASE WHEN x.expired THEN nullif(s.expires_at, '-infinity') ELSE s.ended_at END,
       coalesce(CASE WHEN s.last_end = 'revoked' AND NOT x.expired THEN s.revoked_reason END, ''),
       CASE WHEN s.holder IS NOT NULL AND s.expires_at > s.read_at THEN s.release_request END,
       q.holders, q.tickets, q.waited,
       coalesce(s.capacity, 0), g.tokens, g.weights, g.holders, g.labels, g.since, g.remaining, g.ages, g.requests
FROM page AS p
LEFT JOIN matching AS s ON true
CROSS JOIN LATERAL (SELECT s.holder IS NOT NULL AND s.expires_at <= s.read_at AS expired) AS x
CROSS JOIN LATERAL (
    SELECT array_agg(w.holder ORDER BY w.ticket) AS holders, array_agg(w.ticket ORDER BY w.ticket) AS tickets,
           array_agg((extract(epoch FROM s.read_at - w.since) * 1000000)::bigint ORDER BY w.ticket) AS waited
    FROM pglock.lock_waiters AS w
    WHERE w.name = s.name AND w.ticket > s.ticket AND w.expires_at > s.read_at
) AS q
CROSS JOIN LATERAL (
    SELECT array_agg(p.token ORDER BY p.token) AS tokens, array_agg(p.weight ORDER BY p.token) AS weights,
           array_agg(p.holder ORDER BY p.token) AS holders, array_agg(p.labels::text ORDER BY p.token) AS labels,
           array_agg(p.acquired_at::timestamptz ORDER BY p.token) AS since,
           array_agg((extract(epoch FROM p.expires_at - s.read_at) * 1000000)::bigint ORDER BY p.token) AS remaining,
           array_agg((extract(epoch FROM s.read_at - p.acquired_at) * 1000000)::bigint ORDER BY p.token) AS ages,
           array_agg(p.release_request ORDER BY p.token) AS requests
    FROM pglock.lock_permits AS p
    WHERE s.capacity > 0 AND p.name = s.name AND p.holder IS NOT NULL AND p.expires_at > s.read_at
) AS g
ORDER BY s.name
