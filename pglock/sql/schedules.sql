-- Returns the first $1 jobs: those whose next or failed tick is known, of these first the ones whose last tick is the newest
-- and last the ones that run their first tick, and then those of which there is only a mark, which any writer may make.
SELECT s.job, s.last_tick, coalesce(s.next_tick, ''), coalesce(s.running, ''), coalesce(s.holder, ''), coalesce(s.timezone, ''),
       s.failed_tick, coalesce(s.attempts, 0), coalesce(s.error, ''), s.triggered
FROM (
    SELECT v.job, v.last_tick, v.next_tick, v.running, v.holder, v.timezone, v.failed_tick, v.attempts, v.error, v.triggered FROM pglock.schedules AS v
    UNION ALL
    SELECT l.name, NULL, left(l.labels ->> 'next', 512), left(l.labels ->> 'tick', 512), left(l.holder, 512), left(l.labels ->> 'timezone', 512), NULL, NULL, NULL, NULL
    FROM pglock.distributed_locks AS l
    WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp() AND l.labels ->> 'tick' LIKE '____-__-__T%'
      AND NOT EXISTS (SELECT FROM pglock.schedules AS v WHERE v.job = l.name)
) AS s
ORDER BY s.next_tick IS NULL AND s.failed_tick IS NULL, s.last_tick DESC NULLS LAST, s.job LIMIT $1::bigint
