-- The checks of `pglock doctor` that SQL can make. Each section returns rows of check, level, found and
-- remedy, and an 'ok' counts only if its check has no other row. $1 is a JSON object, of which o lists
-- the keys; times are in seconds. A statement is the common head before the first section, and a section.
--
-- There are several statements because a statement fails as a whole if its role may not read one of its
-- relations, or if one is missing or locked: such a section becomes one row, and the others keep theirs.
-- So a section reads only what may be refused together. All of them run on PostgreSQL 13 and later, change
-- nothing, and have search_path = pg_catalog, under which regclass and its kin print every schema.
WITH o AS (
    SELECT o.*, CASE WHEN o.wanted <> 'screen' THEN o.wanted WHEN pg_is_in_recovery() OR EXISTS (
            SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = o.schema AND c.relname = 'distributed_locks' AND NOT has_table_privilege(c.oid, 'INSERT')) THEN 'reader' ELSE 'user' END AS kind
    FROM jsonb_to_record($1::text::jsonb) AS o (schema text, word text, wanted text, version int, oldest_server int, long_transaction float8,
        xids int8, dead_rows int8, bloated_size int8, idle_rows int8, idle_for float8, headroom int8, queue_usage float8)
), b AS ( -- the server, the role and the schema
    SELECT o.*, current_user::text AS role, current_database()::text AS db, n.oid AS namespace, v.oid AS version_function,
           substring(v.prosrc FROM '[0-9]+')::int AS found_version, c.oldest AS oldest_client,
           format('let the owner of the tables run SELECT %I.%I(%L)', o.schema, 'grant_' || o.kind, current_user) AS grant_user,
           coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(v.oid, 'EXECUTE')
               AND substring(v.prosrc FROM '[0-9]+')::int >= o.version AND c.oldest <= o.version, false) AS usable
    FROM o LEFT JOIN pg_namespace AS n ON n.nspname = o.schema
           LEFT JOIN pg_proc AS v ON v.pronamespace = n.oid AND v.proname = 'pglock_schema_version',
        LATERAL (SELECT max(substring(p.prosrc FROM '[0-9]+')::int) AS oldest FROM pg_proc AS p
                 WHERE p.pronamespace = n.oid AND p.proname = 'pglock_oldest_client') AS c
)

-- section: server
-- Leases set synchronous_commit themselves where it is off.
, s AS (
    SELECT current_setting('synchronous_commit') AS commit, current_setting('synchronous_standby_names') AS standbys,
           (SELECT p.setting FROM pg_settings AS p WHERE p.name = 'idle_in_transaction_session_timeout') AS idle_ms,
           (SELECT p.source FROM pg_settings AS p WHERE p.name = 'default_transaction_read_only' AND p.setting = 'on') AS read_only,
           current_setting('server_version_num')::int / 10000 AS server, pg_notification_queue_usage() AS queue
)
SELECT r.name, r.level, r.found, coalesce(r.remedy, '') FROM b, s, LATERAL (VALUES
    ('server', 'fail', s.server < b.oldest_server, format('PostgreSQL %s is too old', s.server), format('use PostgreSQL %s or later', b.oldest_server)),
    ('server', 'fail', pg_is_in_recovery() AND b.kind <> 'reader', 'the server is a standby, which is read-only',
        'connect to the primary: name all hosts and set target_session_attrs=read-write'),
    ('server', 'fail', s.read_only IS NOT NULL AND b.kind <> 'reader', format('default_transaction_read_only is on (source: %s)', s.read_only),
        CASE s.read_only WHEN 'client' THEN 'remove it from the connection string or PGOPTIONS'
            WHEN 'database' THEN format('ALTER DATABASE %I RESET default_transaction_read_only', b.db)
            WHEN 'user' THEN format('ALTER ROLE %I RESET default_transaction_read_only', b.role)
            WHEN 'database user' THEN format('ALTER ROLE %I IN DATABASE %I RESET default_transaction_read_only', b.role, b.db)
            ELSE 'set it to off in the server''s configuration, or find out why the server is to be read-only' END),
    ('server', 'ok', true, format('PostgreSQL %s, %s', current_setting('server_version'),
        CASE WHEN pg_is_in_recovery() THEN 'a standby, which does not know who waits' WHEN s.read_only IS NOT NULL THEN 'read-only' ELSE 'accepts writes' END), NULL),
    ('durability', 'fail', current_setting('fsync') = 'off', 'fsync is off: after a crash of the machine, two holders may have the same lock and the same token',
        'set fsync = on and reload the server'),
    ('durability', 'warn', current_setting('full_page_writes') = 'off', 'full_page_writes is off: a crash of the machine may damage the tables',
        'set full_page_writes = on unless the file system writes pages whole'),
    ('durability', 'warn', s.standbys <> '' AND s.commit IN ('local', 'off'),
        format('synchronous_commit is %s: a failover may lose the last grants, although there are synchronous standbys', s.commit),
        format('ALTER ROLE %I SET synchronous_commit = on', b.role)),
    ('durability', 'warn', s.standbys = '' AND s.commit = 'off',
        'synchronous_commit is off: leases are safe, but a crash may lose the last transactions of DoTx and ticks that were recorded',
        format('ALTER ROLE %I SET synchronous_commit = on', b.role)),
    ('durability', 'ok', true, format('fsync on, synchronous_commit %s, synchronous standbys: %s', s.commit, coalesce(nullif(s.standbys, ''), 'none')), NULL),
    ('autovacuum', 'fail', current_setting('autovacuum') = 'off', 'autovacuum is off: the tables grow without bound', 'set autovacuum = on and reload the server'),
    ('autovacuum', 'fail', current_setting('track_counts') = 'off', 'track_counts is off: the tables grow without bound', 'set track_counts = on and reload the server'),
    ('autovacuum', 'ok', true, 'on', NULL),
    ('idle timeout', 'ok', s.idle_ms = '0', 'idle_in_transaction_session_timeout is 0: a forgotten transaction slows hot locks down until it ends',
        format('consider ALTER DATABASE %I SET idle_in_transaction_session_timeout = ''1min''', b.db)),
    ('idle timeout', 'ok', s.idle_ms <> '0', format('idle_in_transaction_session_timeout is %s ms', s.idle_ms), NULL),
    ('notification queue', 'warn', s.queue >= b.queue_usage, format('%s %% of the notification queue is in use: when it is full, waiters poll', round(s.queue * 100)),
        'end the session that listens and is in a transaction for long: the server''s log names it'),
    ('notification queue', 'ok', true, format('%s %% in use', round(s.queue * 100)), NULL)
) AS r (name, level, applies, found, remedy) WHERE r.applies

-- section: engine
SELECT 'server', 'fail', split_part(u.why, ': ', 1), substr(u.why, strpos(u.why, ': ') + 2)
FROM b, LATERAL (SELECT pglock.unsafe_server() WHERE b.usable) AS u (why) WHERE u.why IS NOT NULL

-- section: schema
-- The version stands in the body of its function, which a role may read without a right to the schema.
SELECT 'schema', r.level, r.found, r.remedy FROM b, LATERAL (SELECT CASE
        WHEN b.version_function IS NULL THEN ARRAY['fail', format('there are no tables of pglock in schema "%s"', b.schema),
            format('run pglock migrate up --schema %s, or name the right schema', b.word)]
        WHEN NOT has_schema_privilege(b.namespace, 'USAGE') THEN ARRAY['fail', format('role "%s" may not use schema "%s"', b.role, b.schema), b.grant_user]
        WHEN NOT has_function_privilege(b.version_function, 'EXECUTE') THEN
            ARRAY['fail', format('role "%s" lacks EXECUTE on pglock_schema_version', b.role), b.grant_user]
        WHEN b.usable THEN ARRAY['ok', format('"%s", version %s', b.schema, b.found_version), '']
        ELSE ARRAY['fail', format('schema "%s" is at version %s, and this pglock needs %s', b.schema, b.found_version, b.version),
            CASE WHEN b.found_version < b.version THEN format('run pglock migrate up --schema %s', b.word) ELSE 'use a newer pglock' END] END) AS c (texts),
    LATERAL (SELECT c.texts[1], c.texts[2], c.texts[3]) AS r (level, found, remedy)
WHERE b.oldest_client IS NOT NULL OR b.found_version IS DISTINCT FROM b.version -- otherwise objects are missing

-- section: migrations
SELECT 'migrations', 'fail', 'a migration failed half-way', format('run pglock migrate version --schema %s, which says what to do', b.word)
FROM b WHERE EXISTS (SELECT FROM pglock.pglock_migrations AS m WHERE m.dirty)
UNION ALL
SELECT 'migrations', 'fail', format('the record of migrations says version %s, and the tables are of version %s', m.version, b.found_version),
       format('pglock migrate force %s --schema %s, if nobody changes the tables now', b.found_version, b.word)
FROM b, pglock.pglock_migrations AS m WHERE m.version <> b.found_version AND NOT m.dirty
UNION ALL SELECT 'migrations', 'ok', 'none failed half-way', ''

-- section: rights
-- Compares the rights with those that the grant functions and the migrations grant. Default
-- privileges and GRANT ... ON ALL TABLES give more, such as the key of the seals. Owners,
-- superusers and members of roles such as pg_read_all_data, which have everything anyway, are left
-- out.
, relations AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relowner AS owner, c.relacl AS acl, CASE
               WHEN c.relname = ANY ('{distributed_locks,lock_waiters,lock_permits,once_keys,nested_waits,scheduled_jobs}') THEN '{SELECT,INSERT,UPDATE,DELETE}'
               WHEN c.relname = 'fencing_tokens' THEN '{USAGE,SELECT}'
               WHEN c.relname = ANY ('{fencing_secret,fencing_epoch}') THEN '{}'
               ELSE '{SELECT}' END::text[] AS expected
    FROM b JOIN pg_class AS c ON c.relnamespace = b.namespace AND c.relname = ANY (
        '{distributed_locks,lock_waiters,lock_permits,once_keys,nested_waits,scheduled_jobs,fencing_tokens,fencing_secret,fencing_epoch,
          fencing_high_water,operator_actions,locks_held,locks_waiting,once_started,schedules,protected_tables,pglock_migrations}')
    WHERE b.usable
), functions AS (
    SELECT p.* FROM b JOIN pg_proc AS p ON p.pronamespace = b.namespace WHERE b.usable
), needs (kind, of, rights, names) AS ( -- what the grant functions grant, read in their bodies; grant_user calls grant_writer
    SELECT k.kind, g.texts[2], string_to_array(g.texts[1], ', '), g.texts[3]::text[]
    FROM (VALUES ('user', 'grant_user'), ('user', 'grant_writer'), ('reader', 'grant_reader'), ('writer', 'grant_writer'), ('owner', 'grant_owner')) AS k (kind, proname)
        JOIN functions AS p USING (proname)
        CROSS JOIN regexp_matches(p.prosrc, 'grant_on[(]role_name, ''([A-Z, ]+)'', ''([A-Z]+)'',[[:space:]]*''([^'']*)''', 'g') AS g (texts)
), missing (object, needed) AS (
    SELECT c.name, r.needed
    FROM b JOIN needs AS n ON n.kind = b.kind AND n.of <> 'FUNCTION' CROSS JOIN LATERAL unnest(n.rights) AS r (needed)
        JOIN relations AS c ON c.name = ANY (n.names)
    WHERE NOT CASE n.of WHEN 'SEQUENCE' THEN has_sequence_privilege(c.oid, r.needed) ELSE has_table_privilege(c.oid, r.needed) END
    UNION ALL
    SELECT p.proname, 'EXECUTE'
    FROM b JOIN needs AS n ON n.kind = b.kind AND n.of = 'FUNCTION' JOIN functions AS p ON p.proname = ANY (n.names)
    WHERE NOT has_function_privilege(p.oid, 'EXECUTE')
), objects (kind, name, owner, acl, expected, public) AS (
    SELECT 'SCHEMA', n.oid::regnamespace::text, n.nspowner, n.nspacl, '{USAGE}'::text[], '{USAGE}'::text[]
    FROM b JOIN pg_namespace AS n ON n.oid = b.namespace WHERE b.usable
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.owner, a.acl, c.expected, '{SELECT}'
    FROM relations AS c CROSS JOIN LATERAL (
        SELECT c.acl UNION ALL SELECT t.attacl FROM pg_attribute AS t WHERE t.attrelid = c.oid AND t.attacl IS NOT NULL) AS a (acl)
    UNION ALL
    SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)),
           CASE WHEN p.proname = ANY ('{fencing_seal,unsealed,bound_grants,judge_rows,pin_functions,revoke_defaults}') THEN '{}' ELSE '{EXECUTE}' END::text[],
           CASE WHEN p.proname ~ '^fence_' OR p.proname = ANY ('{check_fence,guard,bind,advance,token_follows,highest_token,evidence_bound,
                    lift_sequence,lift_fencing_tokens,raise_pruned,above_pruned,record_action,once_claim}') THEN '{}' ELSE '{EXECUTE}' END::text[]
    FROM functions AS p
), excess (kind, name, grantee, rights) AS (
    SELECT o.kind, o.name, coalesce(quote_ident(r.rolname), 'PUBLIC'), string_agg(DISTINCT a.privilege_type, ', ' ORDER BY a.privilege_type)
    FROM objects AS o CROSS JOIN LATERAL aclexplode(o.acl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE a.grantee <> o.owner AND r.rolsuper IS NOT TRUE
      AND (a.privilege_type <> ALL (o.expected) OR a.grantee = 0 AND a.privilege_type <> ALL (o.public))
    GROUP BY o.kind, o.name, r.rolname
)
SELECT 'rights', 'fail', format('role "%s" lacks %s%s', b.role, array_to_string(l.rights[1:3], ', '),
           CASE WHEN cardinality(l.rights) > 3 THEN format(' and %s more', cardinality(l.rights) - 3) ELSE '' END), b.grant_user
FROM b, (SELECT array_agg(m.needed || ' on ' || m.object ORDER BY m.object, m.needed) AS rights FROM missing AS m) AS l WHERE l.rights IS NOT NULL
UNION ALL
SELECT 'rights', 'warn', format('role "%s" lacks EXECUTE on pg_notify: waiters poll', b.role), format('GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO %I', b.role)
FROM b WHERE b.usable AND NOT has_function_privilege('pg_notify(text, text)', 'EXECUTE')
UNION ALL
SELECT 'rights', 'warn', format('policies may hide rows of %s: a lock whose row is hidden is never granted', c.name),
       format('see that they show the role all rows, or ALTER TABLE %s DISABLE ROW LEVEL SECURITY', c.oid::regclass)
FROM relations AS c WHERE row_security_active(c.oid) AND EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid)
UNION ALL
SELECT 'rights', 'ok', format('role "%s" has those of a %s', b.role, b.kind), '' FROM b WHERE b.usable
UNION ALL
SELECT 'grants', 'fail', format('%s has %s on %s, which no grant function grants: it can break locks or get past the fence', x.grantee, x.rights, x.name),
       format('let the owner run REVOKE %s ON %s %s FROM %s', x.rights, x.kind, x.name, x.grantee)
FROM excess AS x
UNION ALL
SELECT 'grants', 'ok', 'no role has more than the grant functions grant', '' FROM b WHERE b.usable

-- section: dead rows
-- Every acquire of a hot name reads the versions that a transaction can still see. The tables change with
-- each grant and each wait; a row with its free space and its part of the index needs less than 1000 bytes.
, t AS (
    SELECT b.*, c.relname, c.oid::regclass AS name, coalesce(s.n_dead_tup, 0) AS dead, coalesce(s.n_live_tup, 0) AS live, pg_table_size(c.oid) AS size,
           EXISTS (SELECT FROM pg_options_to_table(c.reloptions) AS p WHERE p.option_name = 'autovacuum_enabled' AND NOT p.option_value::boolean) AS disabled
    FROM b JOIN pg_class AS c ON c.relnamespace = b.namespace AND c.relkind = 'r'
           LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
    WHERE b.usable AND c.relname = ANY ('{distributed_locks,lock_waiters,lock_permits,fencing_high_water}')
)
SELECT r.name, r.level, r.found, r.remedy FROM t, LATERAL (SELECT t.dead > t.dead_rows + 5 * t.live) AS m (many_dead), LATERAL (VALUES
    ('dead rows', 'warn', m.many_dead, format('%s has %s dead rows and %s live ones: hot locks get slower', t.relname, t.dead, t.live),
        format('end what holds them back (see transactions, prepared transactions, replication slots), then VACUUM %s', t.name)),
    ('dead rows', 'warn', NOT m.many_dead AND t.size > t.bloated_size AND t.size > 10 * 1000 * greatest(t.live, 1),
        format('%s has %s MB for %s rows', t.relname, t.size >> 20, t.live), format('VACUUM FULL %s at a quiet time: it blocks all locks while it runs', t.name)),
    ('autovacuum', 'fail', t.disabled, format('autovacuum is off for %s, which grows without bound', t.relname), format('ALTER TABLE %s RESET (autovacuum_enabled)', t.name))
) AS r (name, level, applies, found, remedy) WHERE r.applies
UNION ALL
SELECT 'dead rows', 'ok', string_agg(format('%s %s dead, %s kB', t.relname, t.dead, t.size >> 10), ', ' ORDER BY t.relname), '' FROM t HAVING count(*) > 0

-- section: transactions
-- What keeps old versions in this database: transactions, and standbys with hot_standby_feedback and
-- without a slot. A role sees only its own sessions, unless it is a member of pg_read_all_stats.
, a AS (
    SELECT s.pid, s.usename, s.state, s.application_name AS app, s.backend_type = 'walsender' AS standby, clock_timestamp() - s.xact_start AS age,
           greatest(age(s.backend_xmin), age(s.backend_xid)) AS kept
    FROM pg_stat_activity AS s
    WHERE s.pid <> pg_backend_pid() AND (s.backend_xmin IS NOT NULL OR s.backend_xid IS NOT NULL)
      AND (s.datname = current_database() AND s.backend_type <> 'autovacuum worker' OR s.backend_type = 'walsender')
)
(SELECT 'transactions', 'warn', format('process %s of role "%s" (%s, "%s") has been in a transaction for %s: hot locks get slower until it ends',
        a.pid, a.usename, a.state, a.app, date_trunc('second', a.age)), format('SELECT pg_terminate_backend(%s), if it may be interrupted', a.pid)
FROM b, a WHERE NOT a.standby AND a.age > make_interval(secs => b.long_transaction) ORDER BY a.age DESC)
UNION ALL
SELECT 'transactions', 'warn', format('standby "%s" keeps the versions of the last %s transactions', a.app, a.kept),
       'end long queries on it, or set hot_standby_feedback = off there'
FROM b, a WHERE a.standby AND a.kept > b.xids
UNION ALL
SELECT 'transactions', 'ok', format('%s open, none for longer than %s', (SELECT count(*) FROM a), make_interval(secs => b.long_transaction))
           || CASE WHEN h.hidden > 0 THEN format('; %s sessions of other roles can''t be seen', h.hidden) ELSE '' END,
       CASE WHEN h.hidden > 0 THEN format('GRANT pg_read_all_stats TO %I shows them', b.role) ELSE '' END
FROM b, (SELECT count(*) FROM pg_stat_activity AS s WHERE s.query = '<insufficient privilege>' AND s.datname = current_database()) AS h (hidden)

-- section: connections
-- Any role sees the sessions of others, but not what kind they are.
, n AS (
    SELECT count(*) FILTER (WHERE s.datid IS NOT NULL) AS used, count(*) FILTER (WHERE s.usename = current_user) AS by_role,
           count(*) FILTER (WHERE s.datname = current_database()) AS in_database,
           current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8
               - coalesce(current_setting('reserved_connections', true), '0')::int8 AS most
    FROM pg_stat_activity AS s
)
SELECT 'connections', 'warn', format('%s of %s connections of %s are in use: a client of pglock uses up to 5', r.used, r.most, r.name), r.remedy
FROM b, n, LATERAL (VALUES
    ('the server', n.used, n.most, 'raise max_connections, use a pooler, or lower the pools of the clients'),
    (format('role "%s"', b.role), n.by_role, (SELECT r.rolconnlimit FROM pg_roles AS r WHERE r.rolname = current_user),
        format('ALTER ROLE %I CONNECTION LIMIT with a larger number', b.role)),
    (format('database "%s"', b.db), n.in_database, (SELECT d.datconnlimit FROM pg_database AS d WHERE d.datname = current_database()),
        format('ALTER DATABASE %I CONNECTION LIMIT with a larger number', b.db))
) AS r (name, used, most, remedy) WHERE r.most >= 0 AND r.most - r.used < b.headroom
UNION ALL
SELECT 'connections', 'ok', format('%s of %s in use', n.used, n.most), '' FROM n

-- section: prepared transactions
, p AS (
    SELECT x.gid, clock_timestamp() - x.prepared AS age FROM pg_prepared_xacts AS x WHERE x.database = current_database()
)
(SELECT 'prepared transactions', 'warn', format('transaction "%s" has been prepared for %s: hot locks get slower until it ends', p.gid, date_trunc('second', p.age)),
        format('COMMIT PREPARED or ROLLBACK PREPARED %L', p.gid)
FROM b, p WHERE p.age > make_interval(secs => b.long_transaction) ORDER BY p.age DESC)
UNION ALL
SELECT 'prepared transactions', 'ok', format('%s, none for longer than %s', (SELECT count(*) FROM p), make_interval(secs => b.long_transaction)), '' FROM b

-- section: replication slots
-- Only xmin keeps versions of the lock tables; a logical slot's catalog_xmin does not.
, l AS (SELECT s.slot_name, s.active, coalesce(age(s.xmin), 0) AS kept FROM pg_replication_slots AS s)
(SELECT 'replication slots', 'warn', format('slot "%s" keeps the versions of the last %s transactions', l.slot_name, l.kept),
        CASE WHEN l.active THEN 'end long queries on its standby, or set hot_standby_feedback = off there'
            ELSE format('SELECT pg_drop_replication_slot(%L), if its standby does not come back', l.slot_name) END
FROM b, l WHERE l.kept > b.xids ORDER BY l.kept DESC)
UNION ALL
SELECT 'replication slots', 'warn', format('publication "%s" sends the key of the seals and each grant, and its subscribers stop if they lack the tables', p.pubname),
       'publish other schemas only: see Logical replication in the guide to operating'
FROM b JOIN pg_publication_tables AS p ON p.schemaname = b.schema AND p.tablename = 'fencing_secret'
UNION ALL
SELECT 'replication slots', 'ok', format('%s, none keeps more than %s transactions', (SELECT count(*) FROM l), b.xids), '' FROM b

-- section: lock table
-- One pass over the lock table. The sequence is read after its snapshot was taken, and only grows. It is
-- compared with the tokens as lift_fencing_tokens does for one name: a timeline has 2^44 tokens, of which
-- next_fencing_token tells where it knows the timeline. Beyond the middle of the sequence's range of tokens a row
-- is no evidence, as for evidence_bound. Clients prune names that were idle for the retention, 24 h by default.
, timeline AS (
    SELECT CASE WHEN NOT pg_is_in_recovery() AND EXISTS (
            SELECT FROM b JOIN pg_proc AS p ON p.pronamespace = b.namespace WHERE p.proname = 'next_fencing_token' AND p.prosrc LIKE '%pg_walfile_name%')
        THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 ELSE 1 END AS number
), bound AS MATERIALIZED (
    SELECT ((coalesce(pg_sequence_last_value(s.oid), 0) >> 44) + t.number - 1 << 44) + (1::int8 << 43) AS token
    FROM timeline AS t, b JOIN pg_class AS s ON s.relnamespace = b.namespace AND s.relname = 'fencing_tokens'
    WHERE has_sequence_privilege(s.oid, 'USAGE, SELECT')
), k AS (
    SELECT count(*) AS names, count(*) FILTER (WHERE h.held) AS held,
           count(*) FILTER (WHERE l.holder IS NOT NULL AND l.expires_at <= clock_timestamp()) AS expired,
           count(*) FILTER (WHERE NOT h.held AND greatest(l.acquired_at, l.expires_at, l.ended_at) < clock_timestamp() - make_interval(secs => o.idle_for)) AS idle,
           greatest(coalesce(max(l.token) FILTER (WHERE l.token < u.token), 0),
                    (SELECT max(p.token) FROM pglock.lock_permits AS p WHERE p.token < (SELECT token FROM bound))) AS token,
           coalesce(max(l.ticket) FILTER (WHERE l.ticket < u.token), 0) AS ticket,
           count(*) FILTER (WHERE greatest(l.token, l.ticket) >= u.token)
               + (SELECT count(*) FROM pglock.lock_permits AS p WHERE p.token >= (SELECT token FROM bound)) AS forged,
           max(l.acquired_at) - clock_timestamp() AS future,
           clock_timestamp() - max(l.acquired_at) FILTER (WHERE l.name = 'pglock:prune') AS pruned
    FROM o, pglock.distributed_locks AS l LEFT JOIN bound AS u ON true CROSS JOIN LATERAL (
        SELECT l.expires_at > clock_timestamp() OR l.capacity IS NOT NULL AND EXISTS (
            SELECT FROM pglock.lock_permits AS p WHERE p.name = l.name AND p.expires_at > clock_timestamp())) AS h (held)
), q AS (
    SELECT k.*, t.number AS timeline, (t.number - 1) << 44 AS before, greatest(k.token - ((t.number - 1) << 44), k.ticket) AS highest,
           CASE WHEN has_sequence_privilege(s.oid, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(s.oid), 0) END AS last,
           coalesce(date_trunc('second', k.pruned) || ' ago', 'never') AS last_pruned,
           CASE WHEN k.future > interval '1 second' THEN (SELECT l.name FROM pglock.distributed_locks AS l ORDER BY l.acquired_at DESC LIMIT 1) END AS ahead
    FROM k, timeline AS t, b JOIN pg_class AS s ON s.relnamespace = b.namespace AND s.relname = 'fencing_tokens'
)
SELECT r.name, r.level, r.found, coalesce(r.remedy, '') FROM b, q, LATERAL (VALUES
    ('tokens', 'skip', q.last IS NULL, 'the role may not read the sequence of the tokens', b.grant_user),
    ('tokens', 'fail', q.highest > q.last AND NOT pg_is_in_recovery(),
        format('the sequence is at %s, behind %s in the table: the next grants would get smaller tokens than earlier ones', q.last, q.highest),
        format('SELECT %I.lift_fencing_tokens(name) FROM (SELECT name FROM %1$I.distributed_locks ORDER BY greatest(token - %2$s, ticket) DESC LIMIT 1) AS l', b.schema, q.before)),
    ('tokens', 'warn', q.forged > 0, format('%s rows have tokens that the sequence has not reached: a role has written them, or they arrived without the sequence', q.forged),
        format('find out which role may write %I.distributed_locks; the page on tokens through a failover has the statement for rows that arrived', b.schema)),
    ('tokens', 'ok', NOT pg_is_in_recovery(), format('highest %s, timeline %s, the sequence is at %s', q.token, q.timeline, q.last), NULL),
    ('grant times', 'fail', q.future > interval '1 second',
        format('a lock, "%s", was granted %s in the future: the server''s clock was set back, and leases of then last longer', q.ahead, date_trunc('second', q.future)),
        'let NTP slew the server''s clock, never step it; the leases expire by themselves, and pglock release NAME --force --reason TEXT frees a lock at once'),
    ('grant times', 'ok', true, 'no grant is in the future', NULL),
    ('idle rows', 'warn', q.idle >= b.idle_rows, format('%s of %s names have been idle for %s, last pruned: %s', q.idle, q.names, make_interval(secs => b.idle_for), q.last_pruned),
        'run a client with a retention for two hours, or call Client.Prune'),
    ('idle rows', 'ok', true, format('%s names, %s held, %s expired and not released, %s idle for %s, last pruned: %s',
        q.names, q.held, q.expired, q.idle, make_interval(secs => b.idle_for), q.last_pruned), NULL)
) AS r (name, level, applies, found, remedy) WHERE r.applies AND b.usable

-- section: queue rows
-- Clients delete the queue rows of dead clients after a minute.
SELECT 'idle rows', 'warn', format('%s queue rows of dead clients are left', w.dead), 'run a client of the Go package for two hours: it deletes them'
FROM b, (SELECT count(*) FROM pglock.lock_waiters AS w WHERE w.expires_at <= clock_timestamp() - interval '1 hour') AS w (dead)
WHERE b.usable AND w.dead >= b.idle_rows
