-- holder returns the session that holds an advisory lock.
--
-- $1, $2, $3: classid, objid and objsubid of the lock, as in pg_locks.
-- Result: no row if the lock is free. Otherwise the pid of the server process that holds it; its
-- application_name, empty if the role may not see it; whether pg_stat_activity has the session; and
-- the server's time.
--
-- The query acquires no lock. The server reads the two views one after the other, in either order.
-- So the name can be older than the lock, and a session that began or ended in between can be
-- missing: the caller reads again.
SELECT l.pid, coalesce(a.application_name, ''), a.pid IS NOT NULL, clock_timestamp()
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = $1 AND l.objid::bigint = $2 AND l.objsubid = $3
