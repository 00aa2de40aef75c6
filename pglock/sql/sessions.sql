-- Returns the first $1 sessions of pglock in this database, the oldest first, with their age in nanoseconds.
SELECT s.pid, s.application_name AS application, coalesce(s.usename::text, '') AS "user", coalesce(host(s.client_addr), '') AS client_addr,
       coalesce(s.state, '') AS state, coalesce((extract(epoch FROM clock_timestamp() - s.backend_start) * 1000000000)::bigint, 0) AS age,
       coalesce(s.query LIKE 'LISTEN %' OR s.query = '-- ping', false) AS listens
FROM pg_stat_activity AS s
WHERE s.datname = current_database() AND s.application_name LIKE '% (pglock)'
ORDER BY s.backend_start, s.pid LIMIT $1::bigint
