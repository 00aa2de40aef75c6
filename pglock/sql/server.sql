-- Describes the server, its sessions and what waits, in one row. $1 is the schema of the tables.
--
-- A role without pg_read_all_stats sees only the names and the number of other roles' sessions. Those of pglock
-- have its name in theirs. A listening one is known by its last statement: LISTEN, or the ping of a listener of pglock.
WITH a AS MATERIALIZED (SELECT s.*, s.application_name LIKE '% (pglock)' AS ours FROM pg_stat_activity AS s)
SELECT clock_timestamp(), current_setting('server_version'), current_database()::text, current_user::text,
       count(*) FILTER (WHERE a.datid IS NOT NULL), current_setting('max_connections')::bigint,
       count(*) FILTER (WHERE a.ours AND a.datname = current_database()),
       count(*) FILTER (WHERE (a.query LIKE 'LISTEN %' OR a.ours AND a.query = '-- ping') AND a.datname = current_database()),
       pg_notification_queue_usage(), x.age, x.who,
       (SELECT coalesce(sum(t.n_dead_tup), 0)::bigint FROM pg_stat_all_tables AS t
        WHERE t.schemaname = $1::text AND t.relname = ANY ('{distributed_locks,lock_waiters,lock_permits}')),
       (SELECT count(*) FROM pglock.locks_held), (SELECT count(*) FROM pglock.locks_waiting),
       (SELECT count(*) FROM pglock.once_started),
       pg_is_in_recovery(), CASE
           WHEN NOT pg_is_in_recovery() OR EXISTS (SELECT FROM pg_stat_wal_receiver) AND pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
           ELSE (extract(epoch FROM clock_timestamp() - coalesce(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) * 1000000)::bigint END
FROM a, (SELECT coalesce(max((extract(epoch FROM clock_timestamp() - o.xact_start) * 1000000)::bigint), 0) AS age,
                coalesce((array_agg(format('pid %s of %s, %s, %s', o.pid, o.usename, o.application_name, o.state) ORDER BY o.xact_start))[1], '') AS who
         FROM a AS o
         WHERE o.datname = current_database() AND o.pid <> pg_backend_pid() AND o.xact_start IS NOT NULL AND (o.backend_xmin IS NOT NULL OR o.backend_xid IS NOT NULL)) AS x
GROUP BY x.age, x.who
