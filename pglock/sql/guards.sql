-- Returns the first $1 sessions whose transaction has locked the row of a grant, as a guard does, with the nanoseconds of
-- the transaction, the longest first, and its last statement. Of other roles only members of pg_read_all_stats see these.
--
-- The row's xmax is that transaction, or a multixact with it. Nothing says which, so both are tried, and a multixact only
-- if there can be one. A guard also has ROW SHARE on the table, and a renewal does not. No row is read without a guard.
-- The server does not say whose a released savepoint is, so a guard within one is missing.
WITH locks AS MATERIALIZED (
    SELECT k.* FROM pg_locks AS k WHERE k.granted AND (k.locktype = 'transactionid' OR k.mode = 'RowShareLock')
), guards AS MATERIALIZED (
    SELECT x.pid, x.transactionid AS xid, t.relation
    FROM locks AS x JOIN locks AS t ON t.virtualtransaction = x.virtualtransaction WHERE x.locktype = 'transactionid'
), used AS MATERIALIZED (
    SELECT r.*, b.multi
    FROM (SELECT l.name::text, l.holder, l.expires_at, l.xmax AS xid, l.tableoid AS relation FROM pglock.distributed_locks AS l
          UNION ALL SELECT p.name::text, p.holder, p.expires_at, p.xmax, p.tableoid FROM pglock.lock_permits AS p) AS r,
         LATERAL (SELECT mxid_age(r.xid) BETWEEN 1 AND (SELECT max(mxid_age(d.datminmxid)) FROM pg_database AS d) AS multi) AS b
    WHERE EXISTS (SELECT FROM guards) AND (b.multi OR r.xid IN (SELECT g.xid FROM guards AS g))
)
SELECT u.name, u.holder IS NULL OR u.expires_at <= clock_timestamp() AS ended, coalesce(g.pid, 0) AS pid, coalesce(p.gid, '') AS prepared,
       coalesce(s.application_name, '') AS application, coalesce(s.state, '') AS state,
       coalesce((extract(epoch FROM clock_timestamp() - coalesce(s.xact_start, p.prepared)) * 1000000000)::bigint, 0) AS age, coalesce(nullif(s.query, '<insufficient privilege>'), '') AS query
FROM used AS u
CROSS JOIN LATERAL (SELECT u.xid UNION ALL SELECT x.xid FROM pg_get_multixact_members(CASE WHEN u.multi THEN u.xid END) AS x) AS m
JOIN guards AS g ON g.xid = m.xid AND g.relation = u.relation
LEFT JOIN pg_stat_activity AS s ON s.pid = g.pid
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = g.xid
ORDER BY age DESC, g.pid LIMIT $1::bigint
