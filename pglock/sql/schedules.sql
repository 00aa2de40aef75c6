-- Returns the first $1 jobs, those first whose last tick is the newest.
SELECT s.job, coalesce(s.last_tick, '-infinity'), coalesce(s.next_tick, ''), coalesce(s.running, ''), coalesce(s.holder, '')
FROM pglock.schedules AS s ORDER BY s.last_tick DESC NULLS LAST, s.job LIMIT $1::bigint
