-- holder returns the session that holds an advisory lock.
--
-- $1: the number of the lock. Result: no row if the lock is free. Otherwise the pid of the server
-- process that holds it, and its application_name, which is empty if the role may not see it.
--
-- The query acquires no lock. The server reads the two views one after the other, so a session that
-- began in between has no name yet: the caller reads again.
SELECT l.pid, coalesce(a.application_name, '')
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::bigint << 32) | l.objid::bigint = $1
