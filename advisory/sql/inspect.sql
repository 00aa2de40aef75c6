-- Lists the sessions that hold the advisory locks of this database or wait for them.
--
-- Returns a row for each session and lock: the key, whether the lock is shared and granted, the
-- process (0: a prepared transaction), the prepared transaction, and the session's description; how
-- long the session, its transaction (0: none) and its wait (0: not waiting, or a server before
-- version 14) have lasted, in microseconds; and the processes that block it. Waiters follow the
-- holders, in the order of the server's queue. Roles without pg_read_all_stats see only the process
-- of other roles' sessions.
SELECT l.classid::bigint, l.objid::bigint, l.mode = 'ShareLock', l.granted, coalesce(l.pid, 0),
       coalesce(p.gid, ''), coalesce(a.application_name, ''), coalesce(a.usename::text, p.owner::text, ''), coalesce(host(a.client_addr), ''),
       coalesce((date_part('epoch', clock_timestamp() - a.backend_start) * 1000000::float8)::bigint, 0),
       coalesce((date_part('epoch', clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000::float8)::bigint, 0),
       CASE WHEN NOT l.granted THEN coalesce((date_part('epoch', clock_timestamp()
            - (pg_catalog.to_jsonb(l) ->> 'waitstart'::text)::timestamptz) * 1000000::float8)::bigint, 0) ELSE 0 END,
       CASE WHEN l.granted THEN '{}'::int[] ELSE pg_blocking_pids(l.pid) END
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_locks AS x ON l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 -- 2: a lock of two numbers
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY l.classid::bigint, l.objid::bigint, l.granted DESC,
         (pg_catalog.to_jsonb(l) ->> 'waitstart'::text)::timestamptz NULLS FIRST, l.pid
