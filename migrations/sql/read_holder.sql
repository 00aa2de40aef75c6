-- Reads which session holds the lock of withLock on the table $1, the version table.
--
-- Returns no row if the lock is free. Otherwise the process ID, the role and the application_name, of
-- which the last two are empty if this role may not see them.
--
-- The statement acquires no lock. Each name and operator is qualified, because strangers may have
-- created others in the search_path of the connection.
SELECT l.pid, coalesce(a.usename::pg_catalog.text, ''), coalesce(a.application_name, '')
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.locktype OPERATOR(pg_catalog.=) 'relation'::pg_catalog.text AND l.granted AND l.mode OPERATOR(pg_catalog.=) 'ShareUpdateExclusiveLock'::pg_catalog.text
  AND l.relation OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
LIMIT 1
