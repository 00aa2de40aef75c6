-- Makes the tickets of the clients $1 for the names $2 expire $3 microseconds from now, and looks at the
-- locks for them. Those of callers that wait for several names are not skipped for $4 microseconds.
--
-- A client in the overflow list (see lock_waiters) enters the queue if fewer than $5 and the name's permits
-- wait before it. The times since when they wait say who came before it, because their tickets may be newer.
-- Each client that looks enters it if less than half of that number are in the queue, which then moves
-- faster than those in the list look, or if nobody in the queue takes a free lock.
--
-- Returns name, client and ticket of each one found; whether it is in the overflow list; whether it
-- is lost, because the queue has skipped it or the name has too few permits by now; the number of
-- waiters before it; whether there is room for it by itself, with permits that have expired or that
-- only a guarded transaction uses, and otherwise the remaining microseconds of the grant in the way
-- that ends first; and whether the head, if it is not kept, could have been granted what it wants
-- for one and a half seconds, without those permits. Rows are locked in the order of names.
WITH mine AS MATERIALIZED (
    SELECT w.name, w.client, w.ticket, w.state, w.since, w.weight, w.keep_until, a.us, a.near
    FROM (SELECT * FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $5::bigint[])) AS a (client, name, us, near)
          ORDER BY a.name COLLATE "C", a.client) AS a
    CROSS JOIN LATERAL (SELECT w.* FROM pglock.lock_waiters AS w WHERE w.name = a.name AND w.client = a.client AND pglock.commit_lazily() FOR UPDATE) AS w
), seen AS MATERIALIZED (
    SELECT m.name, m.client, m.us, e.enters, f.free, o.overdue, m.state = 'queued' AND m.ticket <= l.ticket OR m.weight > l.capacity AS lost,
           CASE WHEN m.ticket > coalesce(l.ticket, 0) THEN m.ticket END AS unused,
           CASE WHEN e.enters THEN q.queue ELSE q.before + q.overflow END AS ahead,
           CASE WHEN f.free THEN 0
                ELSE greatest((extract(epoch FROM greatest(l.expires_at, p.ends, clock_timestamp()) - clock_timestamp()) * 1000000)::bigint, 1)
                END AS remaining,
           (l.capacity - l.in_use < m.weight) IS NOT TRUE AS room
    FROM mine AS m
    LEFT JOIN LATERAL (SELECT l.*, l AS gate FROM pglock.distributed_locks AS l WHERE l.name = m.name OFFSET 0) AS l ON true
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.queued) AS queue,
               count(*) FILTER (WHERE w.queued AND CASE m.state WHEN 'overflow' THEN w.since < m.since ELSE w.ticket < m.ticket END) AS before,
               count(*) FILTER (WHERE w.state = 'overflow' AND m.state = 'overflow' AND w.ticket < m.ticket) AS overflow,
               max(w.keep_until) FILTER (WHERE w.queued) AS keep_until
        FROM (SELECT v.*, v.state = 'queued' AND v.ticket > coalesce(l.ticket, 0) AS queued FROM pglock.lock_waiters AS v) AS w
        WHERE w.name = m.name AND w.client <> m.client AND w.expires_at > clock_timestamp()) AS q
    CROSS JOIN LATERAL (
        SELECT min(p.expires_at) FILTER (WHERE p.expires_at > clock_timestamp()) AS ends,
               coalesce(sum(p.weight) FILTER (WHERE p.expires_at <= clock_timestamp()), 0) AS expired
        FROM pglock.lock_permits AS p
        WHERE l.capacity > 0 AND p.name = m.name) AS p
    CROSS JOIN LATERAL (
        SELECT coalesce(l.expires_at <= clock_timestamp()
                        AND (l.capacity IS NULL OR l.capacity - l.in_use + p.expired >= m.weight), true) AS free) AS f
    CROSS JOIN LATERAL (
        SELECT pglock.head_is_silent(l.gate, NULL, greatest(q.keep_until, m.keep_until)) AS overdue) AS o
    CROSS JOIN LATERAL (
        SELECT m.state = 'overflow' AND (q.before + q.overflow < m.near + coalesce(l.capacity, 0)
                                  OR q.queue < (m.near + coalesce(l.capacity, 0)) / 2 OR f.free AND o.overdue) AS enters) AS e
)
UPDATE pglock.lock_waiters AS w
SET expires_at = clock_timestamp() + s.us * interval '1 microsecond',
    keep_until = CASE WHEN position('/' IN w.client) > 0 THEN clock_timestamp() + $4::bigint * interval '1 microsecond' ELSE w.keep_until END,
    ticket = CASE WHEN s.enters THEN coalesce(s.unused, pglock.next_ticket()) ELSE w.ticket END,
    state = CASE WHEN s.enters THEN 'queued' ELSE w.state END
FROM seen AS s
WHERE w.name = s.name AND w.client = s.client AND w.name = ANY (ARRAY(SELECT m.name FROM mine AS m))
RETURNING w.name, w.client, w.ticket, w.state = 'overflow', coalesce(s.lost, false), s.ahead, s.free, s.remaining, coalesce(s.overdue AND s.room, false)
