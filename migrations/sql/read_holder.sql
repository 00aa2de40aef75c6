-- Reads which session holds the lock of withLock on the table $1, the version table.
--
-- Returns no row if the lock is free. Otherwise the process ID, the role and the application_name, of
-- which the last two are empty if this role may not see them.
--
-- The statement acquires no lock. Each name is qualified, because strangers may have created
-- functions in the search_path of the connection.
SELECT l.pid, coalesce(a.usename::pg_catalog.text, ''), coalesce(a.application_name, '')
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation'::pg_catalog.text AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'::pg_catalog.text
  AND l.relation = pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
LIMIT 1
