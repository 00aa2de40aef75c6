-- The lock table, its queue and its tokens.
--
-- Run this file in one transaction, with search_path set to the schema of the tables. Names that
-- must resolve under another search_path later are qualified with current_schema().

-- One sequence for all names: after the row of an idle name is pruned, its tokens still never
-- repeat. CACHE must stay 1: with a cached range, a session would hand out tokens below those that
-- other sessions have drawn since.
CREATE SEQUENCE fencing_tokens AS bigint CACHE 1;

-- The domain checks a name when it is inserted. A CHECK on the tables would be parsed and evaluated
-- at each change of a row, although the name never changes.
CREATE DOMAIN lock_name AS text CHECK (octet_length(VALUE) BETWEEN 1 AND 512);

-- A channel that NOTIFY accepts: without what follows a slash, it is not empty. Any other text would make
-- each release of the lock fail.
CREATE DOMAIN wake_channel AS text CHECK (octet_length(VALUE) BETWEEN 1 AND 63 AND left(VALUE, 1) <> '/');

-- Times whose differences fit into the durations of clients, 292 years in nanoseconds. Older servers
-- can't subtract infinity. A free lock expires at -infinity.
CREATE DOMAIN finite_time AS timestamptz CHECK (VALUE >= '1970-01-01 00:00+00' AND VALUE < '2262-01-01 00:00+00');
CREATE DOMAIN lease_end AS timestamptz CHECK (VALUE < '2262-01-01 00:00+00' AND (VALUE >= '1970-01-01 00:00+00' OR VALUE = '-infinity'));

-- Numbers of permits whose sums and differences fit into an integer: see 0005.
CREATE DOMAIN permit_count AS integer CHECK (VALUE BETWEEN 1 AND 1073741824);
CREATE DOMAIN permit_sum AS integer CHECK (VALUE BETWEEN 0 AND 1073741824);

-- 0002 adds the check.
CREATE DOMAIN token_value AS bigint;

-- A free lock keeps its row: holder is null, expires_at is -infinity, and token and version are
-- those of its last grant. If holder is null and expires_at is in the future, the lock was released,
-- and nobody may acquire it before that time (WithMinHold).
--
-- last_holder, ended_at and last_end describe the last grant that has ended: the last one while the
-- lock is free, and the one before while it is held. The statement that ends a grant writes them,
-- or the next grant if it has expired. So they cost no write of their own.
--
-- Only name is indexed, so that every change of a row is a heap-only update. A takeover therefore
-- changes no key column, and would not conflict with a guard's FOR KEY SHARE. So each statement
-- that changes token locks the row FOR UPDATE first. Renewals and releases do not, so a guard does
-- not block them.
CREATE TABLE distributed_locks (
    name        lock_name   PRIMARY KEY,
    token       token_value NOT NULL,
    version     bigint      NOT NULL,
    ticket      bigint      NOT NULL DEFAULT 0,
    acquired_at finite_time NOT NULL,
    expires_at  lease_end   NOT NULL,
    ended_at    finite_time,
    request     uuid,
    holder      text,
    labels      jsonb       NOT NULL DEFAULT '{}',
    last_holder     text,
    last_end        text,
    release_request text,
    revoked_token   bigint,
    revoked_reason  text,
    revoked_permits jsonb,
    capacity        permit_count,
    in_use          permit_sum,
    room_since      finite_time
) WITH (
    -- The table is small and changes often: half of each page is room for the next versions of its
    -- rows, and vacuum runs early.
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- These columns change from all free to all held between two samples. A sample taken while the locks
-- are free makes the planner expect no held row, and a batch then reads rows times names.
ALTER TABLE distributed_locks
    ALTER COLUMN token SET STATISTICS 0, ALTER COLUMN version SET STATISTICS 0, ALTER COLUMN ticket SET STATISTICS 0,
    ALTER COLUMN acquired_at SET STATISTICS 0, ALTER COLUMN expires_at SET STATISTICS 0,
    ALTER COLUMN ended_at SET STATISTICS 0, ALTER COLUMN request SET STATISTICS 0,
    ALTER COLUMN holder SET STATISTICS 0, ALTER COLUMN labels SET STATISTICS 0,
    ALTER COLUMN last_holder SET STATISTICS 0, ALTER COLUMN last_end SET STATISTICS 0,
    ALTER COLUMN release_request SET STATISTICS 0, ALTER COLUMN revoked_token SET STATISTICS 0,
    ALTER COLUMN revoked_reason SET STATISTICS 0, ALTER COLUMN revoked_permits SET STATISTICS 0, ALTER COLUMN capacity SET STATISTICS 0,
    ALTER COLUMN in_use SET STATISTICS 0, ALTER COLUMN room_since SET STATISTICS 0;

COMMENT ON TABLE distributed_locks IS 'pglock: one row a lock name, held or free';
COMMENT ON COLUMN distributed_locks.token IS 'fencing token of the last grant; grows with every grant of any name';
COMMENT ON COLUMN distributed_locks.version IS 'grows by one on every change of the row; 1 follows 2^63-1';
COMMENT ON COLUMN distributed_locks.ticket IS 'of the last waiter that was granted the lock: tickets up to it are used or were skipped';
COMMENT ON COLUMN distributed_locks.expires_at IS 'by the server''s clock; -infinity while free';
COMMENT ON COLUMN distributed_locks.ended_at IS 'when the last grant that is over was released, revoked or expired; null if none is over';
COMMENT ON COLUMN distributed_locks.capacity IS 'the number of permits of a semaphore, 2^30 for a readers-writer lock; null for a lock that has one holder';
COMMENT ON COLUMN distributed_locks.in_use IS 'the permits in lock_permits, expired ones too until an acquire needs them';
COMMENT ON COLUMN distributed_locks.room_since IS 'of a name with permits: since when the head of the queue could be granted';
COMMENT ON COLUMN distributed_locks.request IS 'the attempt that was granted the lock, so that a repeated request is recognized';
COMMENT ON COLUMN distributed_locks.last_holder IS 'of the last grant that is over';
COMMENT ON COLUMN distributed_locks.last_end IS 'how the last grant that is over has ended: released, expired or revoked';
COMMENT ON COLUMN distributed_locks.release_request IS 'the reason why the current holder is asked to release the lock; null if it is not asked';
COMMENT ON COLUMN distributed_locks.revoked_token IS 'of the last grant that was revoked, so that its holder learns the reason';
COMMENT ON COLUMN distributed_locks.revoked_reason IS 'why the grant with revoked_token was revoked';
COMMENT ON COLUMN distributed_locks.revoked_permits IS 'of a name with permits: the reasons of the grants that were revoked, by token';

-- The wait queue: one row per process and name, first come first served by ticket. A ticket is
-- valid until it expires, or until the lock's row has one as high. A client that waits again
-- updates its row, and no index. The table is unlogged: after a crash of the server clients queue
-- again, which costs order, never exclusion.
--
-- A caller that waits for several names has one ticket, in a row for each of them. The client of such
-- rows is its channel, a slash and a number. Its turn may come at one name long before the others, and
-- the name is free until then. So the queue does not skip it while it is alive (keep_until). Neither does
-- it skip a head that finds the row of a free lock in use by a guarded transaction.
--
-- A row with the ticket -1 belongs to a client that watches the lock. Its ticket is never valid, so
-- the queue does not see it. A release of a lock without such a row costs nothing more.
CREATE UNLOGGED TABLE lock_waiters (
    name       lock_name   NOT NULL,
    client     wake_channel NOT NULL,
    ticket     bigint      NOT NULL DEFAULT nextval('fencing_tokens'),
    expires_at finite_time NOT NULL,
    since      finite_time NOT NULL DEFAULT clock_timestamp(),
    holder     text        NOT NULL DEFAULT '',
    weight     permit_count NOT NULL DEFAULT 1,
    keep_until lease_end   NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (name, client)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- As above. A name with many waiters would make the planner expect as many for each name, and read
-- the queues of all names for the one that it needs.
ALTER TABLE lock_waiters
    ALTER COLUMN name SET STATISTICS 0, ALTER COLUMN client SET STATISTICS 0, ALTER COLUMN ticket SET STATISTICS 0, ALTER COLUMN expires_at SET STATISTICS 0,
    ALTER COLUMN since SET STATISTICS 0, ALTER COLUMN holder SET STATISTICS 0, ALTER COLUMN weight SET STATISTICS 0,
    ALTER COLUMN keep_until SET STATISTICS 0;

COMMENT ON TABLE lock_waiters IS 'pglock: the waiters of each name, first come first served by ticket';
COMMENT ON COLUMN lock_waiters.weight IS 'the permits that the waiter needs; about those of a client that has several waiters';
COMMENT ON COLUMN lock_waiters.client IS 'the channel that notifies this client; after a slash, what tells it which of its callers waits for several names';
COMMENT ON COLUMN lock_waiters.keep_until IS 'until when the queue does not skip the ticket: of a caller that waits for several names, or of a head that found the row locked';
COMMENT ON COLUMN lock_waiters.since IS 'since when the first caller of this client waits';
COMMENT ON COLUMN lock_waiters.holder IS 'the name of that caller, which others see when it holds the lock';

-- The permits of semaphores, and of the readers of readers-writer locks: one row per grant. The row
-- of the name in distributed_locks is the gate: a statement that grants or releases permits locks it
-- first. A grant of all permits at once is exclusive. It has no row here, but is in the gate like
-- any other lock.
--
-- The token of a grant here is above the token that the gate had before. A released permit that a
-- guarded transaction still uses keeps its row, without a holder, until an acquire needs it.
CREATE TABLE lock_permits (
    name        lock_name   NOT NULL,
    token       token_value NOT NULL,
    weight      integer     NOT NULL CHECK (weight BETWEEN 1 AND 1073741824),
    version     bigint      NOT NULL,
    acquired_at finite_time NOT NULL,
    expires_at  lease_end   NOT NULL,
    request     uuid        NOT NULL,
    holder      text,
    labels      jsonb       NOT NULL DEFAULT '{}',
    release_request text,
    PRIMARY KEY (name, token),
    UNIQUE (name, request)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE lock_permits -- as above
    ALTER COLUMN token SET STATISTICS 0, ALTER COLUMN version SET STATISTICS 0, ALTER COLUMN acquired_at SET STATISTICS 0,
    ALTER COLUMN expires_at SET STATISTICS 0, ALTER COLUMN request SET STATISTICS 0, ALTER COLUMN holder SET STATISTICS 0,
    ALTER COLUMN labels SET STATISTICS 0, ALTER COLUMN release_request SET STATISTICS 0;

COMMENT ON TABLE lock_permits IS 'pglock: the permits of semaphores and of readers; the row of the name in distributed_locks has their number';
COMMENT ON COLUMN lock_permits.holder IS 'null once released';
COMMENT ON COLUMN lock_permits.release_request IS 'the reason why the holder is asked to release the permits; null if it is not asked';

-- The views of holders and of waiters. A role needs no right on the tables to read these, only
-- SELECT on the view and USAGE on the schema. security_barrier keeps a cheap function of the reader
-- from seeing the rows that the view leaves out.
CREATE VIEW locks_held WITH (security_barrier) AS
SELECT l.name::text AS name, l.holder, l.token::bigint, l.acquired_at::timestamptz AS since,
       l.expires_at - clock_timestamp() AS remaining, l.labels, true AS exclusive, nullif(l.capacity, 1073741824)::integer AS permits
FROM distributed_locks AS l
WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
UNION ALL
SELECT p.name::text, p.holder, p.token::bigint, p.acquired_at::timestamptz, p.expires_at - clock_timestamp(), p.labels,
       false, CASE WHEN l.capacity < 1073741824 THEN p.weight END
FROM lock_permits AS p
JOIN distributed_locks AS l ON l.name = p.name
WHERE p.holder IS NOT NULL AND p.expires_at > clock_timestamp();

COMMENT ON VIEW locks_held IS 'pglock: the locks that are held, by the server''s clock';
COMMENT ON COLUMN locks_held.remaining IS 'until the grant expires unless renewed';
COMMENT ON COLUMN locks_held.exclusive IS 'false for a reader, and for a holder of some of the permits of a semaphore';
COMMENT ON COLUMN locks_held.permits IS 'of a semaphore: how many of them the holder has; null for other locks';

CREATE VIEW locks_waiting WITH (security_barrier) AS
SELECT w.name::text AS name, w.ticket, w.holder AS client, clock_timestamp() - w.since AS waited,
       l.capacity IS NULL OR w.weight >= l.capacity AS exclusive, CASE WHEN l.capacity < 1073741824 THEN w.weight END::integer AS permits
FROM lock_waiters AS w
LEFT JOIN distributed_locks AS l ON l.name = w.name
WHERE w.ticket > coalesce(l.ticket, 0) AND w.expires_at > clock_timestamp();

COMMENT ON VIEW locks_waiting IS 'pglock: the waiters of each name; the smallest ticket is the head of the queue';
COMMENT ON COLUMN locks_waiting.exclusive IS 'false for one that waits to be a reader, or for some of the permits of a semaphore';
COMMENT ON COLUMN locks_waiting.permits IS 'of a semaphore: how many of them the waiter needs; null for other locks';
COMMENT ON COLUMN locks_waiting.client IS 'the name of the waiter, as others see it when it holds the lock';

-- The state of lift_fencing_tokens() and of pruning. A restore of data into a migrated schema can
-- add a second row; lift_fencing_tokens() merges them.
CREATE TABLE fencing_epoch (
    system   bigint,
    timeline bigint NOT NULL,
    epoch    bigint NOT NULL,
    pruned   bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE fencing_epoch IS 'pglock: the range of the last token, and its cluster; empty until the first client connects';
COMMENT ON COLUMN fencing_epoch.system IS 'system identifier of the cluster; null if the server does not report it';
COMMENT ON COLUMN fencing_epoch.timeline IS 'timeline of the write-ahead log';
COMMENT ON COLUMN fencing_epoch.epoch IS 'the range of tokens from epoch * 2^44 on; grows with every promotion';
COMMENT ON COLUMN fencing_epoch.pruned IS 'no pruned row had a higher token';

DO $install$
DECLARE
    here     text := pg_catalog.quote_ident(pg_catalog.current_schema());
    -- The timeline of the write-ahead log grows at each promotion, and is in the upper bits of a
    -- token. So a standby that was promoted without the last grants still draws larger tokens than
    -- the old primary. 2^44 tokens fit in a timeline. The name of a WAL file begins with the
    -- timeline in eight hex digits.
    timeline text := $$('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))
        ::pg_catalog.bit(32)::pg_catalog.int8$$;
    system   text := '(SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c)';
BEGIN
    BEGIN
        PERFORM pg_walfile_name(pg_current_wal_lsn());
    EXCEPTION WHEN undefined_function OR feature_not_supported OR insufficient_privilege THEN
        -- A promotion can't be detected: each new connection takes case 1 below.
        timeline := '1::pg_catalog.int8';
        system := 'NULL::pg_catalog.int8';
    END;

    -- LANGUAGE sql without a SET clause, so that the planner inlines it.
    EXECUTE format(
        'CREATE FUNCTION next_fencing_token() RETURNS bigint LANGUAGE sql VOLATILE AS %L',
        format('SELECT pg_catalog.nextval(%L::pg_catalog.regclass) + (%s - 1) * 17592186044416::pg_catalog.int8',
               here || '.fencing_tokens', timeline));

    -- Sets the sequence above all tokens if something has set it back, and returns the highest
    -- token drawn. A client calls it for each new connection. It reads one row of each table,
    -- however many names there are.
    --
    -- 1. The cluster or its timeline has changed since the last call.
    --    * pg_upgrade and a restored dump begin with timeline 1 again and keep the sequence:
    --      fencing_epoch has the upper bits of the last token.
    --    * Two standbys that are promoted one after the other, without a connection between them,
    --      choose the same timeline. Logical replication copies rows without their sequence. So
    --      the sequence skips to the server's clock, at 10,000 ticks a second. The order of tokens
    --      then depends on the clocks of the two servers, and on fewer tokens than ticks between
    --      the two promotions.
    -- 2. The row of the name "evidence" has a higher token or ticket. A client passes the name of
    --    the lock with the highest token that it was granted. A role that may write rows can forge
    --    a token: the function ignores numbers from 2^62 on, so half of the sequence always
    --    remains.
    --
    -- The table lock prevents a slow caller from setting the sequence back. It needs rights on the
    -- table that only the owner of this function has.
    BEGIN
        PERFORM system_identifier FROM pg_control_system();
    EXCEPTION WHEN undefined_function OR undefined_table OR feature_not_supported OR insufficient_privilege THEN
        system := 'NULL::pg_catalog.int8'; -- as above
    END;
    EXECUTE format(
        'CREATE FUNCTION lift_fencing_tokens(evidence text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql VOLATILE
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        format($lift$
DECLARE
    size          CONSTANT int8 := 17592186044416;
    this_system   CONSTANT int8 := %4$s;
    this_timeline CONSTANT int8 := %2$s;
    before        CONSTANT int8 := (this_timeline - 1) * size; -- what next_fencing_token() adds
    last          int8; -- value of the sequence
    target        int8;
    same          boolean;
    was           record;
    proof         record;
BEGIN
    SELECT l.token, l.ticket INTO proof FROM %1$s.distributed_locks AS l
    WHERE l.name = evidence AND greatest(l.token, l.ticket) < 4611686018427387904;
    FOR locked IN 0..1 LOOP
        SELECT count(*) = 1 AND coalesce(bool_and(e.system = this_system AND e.timeline = this_timeline), false) AS same,
               count(*) AS rows, coalesce(max(e.epoch), 0) AS epoch, coalesce(max(e.pruned), 0) AS pruned
        INTO was FROM %1$s.fencing_epoch AS e;
        same := was.same;
        SELECT s.last_value - (NOT s.is_called)::int INTO last FROM %1$s.fencing_tokens AS s;
        target := greatest(last, proof.token - before, proof.ticket, was.pruned - before);
        IF same AND target = last THEN
            RETURN last + before;
        END IF;
        EXIT WHEN locked = 1;
        LOCK TABLE %1$s.fencing_epoch IN SHARE ROW EXCLUSIVE MODE;
    END LOOP;
    IF NOT same AND (was.rows > 0 OR EXISTS (SELECT FROM %1$s.distributed_locks)) THEN
        -- A second call changes nothing: a failed transaction does not set a sequence back.
        target := greatest(target, (was.epoch - (this_timeline - 1)) * size + mod(last, size));
        target := greatest(target, target / size * size +
            floor(extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00') * 10000)::int8);
    END IF;
    IF target > last THEN
        PERFORM setval(%3$L, target);
    END IF;
    IF NOT same OR (target + before) / size > was.epoch THEN
        DELETE FROM %1$s.fencing_epoch;
        INSERT INTO %1$s.fencing_epoch VALUES (this_system, this_timeline, (target + before) / size, was.pruned);
    END IF;
    RETURN target + before;
END
$lift$, here, timeline, here || '.fencing_tokens', system));

    -- The mark "pruned" orders pruning and first grants. Suppose that a first grant has drawn its
    -- token and stalls, and that its name is granted to others, released and pruned meanwhile. Then
    -- no row shows that the stalled token is an old one. So pruning raises the mark in the
    -- transaction that deletes rows, and a first grant compares the mark after it has inserted its
    -- row. Either the deletion has committed by then, and the grant sees the mark, or the row that
    -- is to be deleted conflicts with the insert. Neither waits longer than for the other's commit.
    --
    -- raise_pruned returns the highest token that may be deleted: a row above the sequence is the
    -- only evidence of its token.
    EXECUTE format(
        'CREATE FUNCTION raise_pruned(token bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        format($raise$
DECLARE
    mark int8;
BEGIN
    SELECT least(token, s.last_value - (NOT s.is_called)::int + (%2$s - 1) * 17592186044416::int8) INTO mark
    FROM %1$s.fencing_tokens AS s;
    UPDATE %1$s.fencing_epoch AS e SET pruned = mark WHERE e.pruned < mark;
    IF NOT EXISTS (SELECT FROM %1$s.fencing_epoch) THEN
        RETURN 0; -- there is no row for the mark
    END IF;
    RETURN mark;
END
$raise$, here, timeline));

    -- Returns the token. VOLATILE, because its query needs a snapshot of its own: the snapshot of
    -- the calling statement may be older than the deletion.
    EXECUTE format(
        'CREATE FUNCTION require_unpruned(token bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        format($require$
DECLARE
    mark int8;
BEGIN
    SELECT max(e.pruned) INTO mark FROM %1$s.fencing_epoch AS e;
    IF token <= mark THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('pglock: the token %%s was drawn before names with tokens up to %%s were pruned', token, mark),
            HINT = 'Try again.';
    END IF;
    RETURN token;
END
$require$, here));

    -- Notifies the head of a name's queue: the first ticket above the one that was used last. Each
    -- statement of a function has a snapshot of its own, so this one sees the tickets that were
    -- drawn while the release waited for its turn. Without a waiter it sends no notification,
    -- because NOTIFY holds a lock of the whole cluster until the commit is done. Clients that watch
    -- the lock, with ticket -1, are notified too. They come first in the order of tickets, so one
    -- query finds out that there is none. The payload is the name, or what follows the slash of the
    -- client.
    EXECUTE format(
        'CREATE FUNCTION wake_next(lock_name text, used_up bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS %L',
        format($wake$
DECLARE
    head record;
BEGIN
    SELECT w.client, w.ticket INTO head
    FROM %1$s.lock_waiters AS w
    WHERE w.name = lock_name AND (w.ticket > used_up OR w.ticket = -1) AND w.expires_at > pg_catalog.clock_timestamp()
    ORDER BY w.ticket
    LIMIT 1;
    IF head.ticket = -1 THEN
        PERFORM pg_catalog.pg_notify(w.client, lock_name)
        FROM %1$s.lock_waiters AS w
        WHERE w.name = lock_name AND w.ticket = -1 AND w.expires_at > pg_catalog.clock_timestamp();
        SELECT w.client, w.ticket INTO head
        FROM %1$s.lock_waiters AS w
        WHERE w.name = lock_name AND w.ticket > used_up AND w.expires_at > pg_catalog.clock_timestamp()
        ORDER BY w.ticket
        LIMIT 1;
    END IF;
    IF head.client IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_catalog.pg_notify(pg_catalog.split_part(head.client, '/', 1),
        coalesce(nullif(pg_catalog.split_part(head.client, '/', 2), ''), lock_name));
    RETURN true;
END
$wake$, here));

    -- The same for many names. Returns the names whose head was notified.
    EXECUTE format(
        'CREATE FUNCTION wake_each(lock_names text[], used_up bigint[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS %L',
        format($wake$
BEGIN
    IF NOT EXISTS (SELECT FROM %1$s.lock_waiters) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(
        SELECT l.name
        FROM ROWS FROM (pg_catalog.unnest(lock_names), pg_catalog.unnest(used_up)) AS l (name, used_up)
        WHERE %1$s.wake_next(l.name, l.used_up));
END
$wake$, here));
END
$install$;

COMMENT ON FUNCTION wake_next(text, bigint) IS 'pglock: notify the head of a lock''s queue';
COMMENT ON FUNCTION wake_each(text[], bigint[]) IS 'pglock: notify the head of each lock''s queue';

COMMENT ON FUNCTION next_fencing_token() IS 'pglock: a token above every token drawn before, also after a failover';
COMMENT ON FUNCTION lift_fencing_tokens(text) IS 'pglock: set the sequence above all tokens, after a promotion, pg_upgrade or a restore; returns the highest token drawn';
COMMENT ON FUNCTION raise_pruned(bigint) IS 'pglock: record that rows up to a token are pruned; returns the highest token that may be';
COMMENT ON FUNCTION require_unpruned(bigint) IS 'pglock: fail if rows with higher tokens than a first grant''s were pruned';

-- grant_user() grants these rights.
REVOKE EXECUTE ON FUNCTION lift_fencing_tokens(text), raise_pruned(bigint), require_unpruned(bigint) FROM PUBLIC;

-- Returns the key of an advisory lock by name, the same as advisory.NewKey in Go: the first 64 bits
-- of the SHA-256 of a tag, the namespace and the name, each after its length. It must never change.
-- It fails for NULL, because pg_advisory_lock does nothing for a NULL key.
CREATE FUNCTION advisory_key(namespace text, name text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hashed bytea := '';
    part   text;
BEGIN
    IF coalesce(namespace, '') = '' OR coalesce(name, '') = '' THEN
        RAISE EXCEPTION 'an advisory key needs a namespace and a name' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH part IN ARRAY ARRAY['pglock.advisory.v1', namespace, name] LOOP
        hashed := hashed || int8send(octet_length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8');
    END LOOP;
    RETURN ('x' || encode(substr(sha256(hashed), 1, 8), 'hex'))::bit(64)::bigint;
END
$$;
COMMENT ON FUNCTION advisory_key(text, text) IS 'pglock: the key of pg_advisory_xact_lock for a name';

-- Clients compare it with the version that they need.
CREATE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_schema_version() IS 'pglock: the number of the last migration';

-- Revokes what ALTER DEFAULT PRIVILEGES has granted to others on the objects that this transaction has
-- made. Only PUBLIC keeps what the server itself grants it. Other rights are the decision of the
-- grant functions, and each migration calls this before it grants anything. The tables of the
-- migrations themselves were made before: a role with more than SELECT could block or redirect them.
CREATE FUNCTION revoke_defaults(here regnamespace) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT DISTINCT format('REVOKE ALL ON %s %s FROM %s', o.kind, o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
        FROM (
            SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner, c.relacl, false,
                   age(c.xmin) <= 0, c.relname = 'pglock_migrations'
            FROM pg_class AS c WHERE c.relnamespace = here
            UNION ALL
            SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, p.proacl, true, age(p.xmin) <= 0, false
            FROM pg_proc AS p WHERE p.pronamespace = here
            UNION ALL
            SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl, true, age(t.xmin) <= 0, false
            FROM pg_type AS t WHERE t.typnamespace = here
        ) AS o (kind, name, owner, acl, is_public, is_new, is_record), aclexplode(o.acl) AS a
        WHERE a.grantee <> o.owner AND NOT (a.grantee = 0 AND o.is_public)
          AND (o.is_new OR o.is_record AND a.privilege_type <> 'SELECT')
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION revoke_defaults(regnamespace) FROM PUBLIC;
COMMENT ON FUNCTION revoke_defaults(regnamespace) IS 'pglock: revoke default privileges of others on new objects; migrations call it';

SELECT revoke_defaults(pg_catalog.quote_ident(pg_catalog.current_schema())::pg_catalog.regnamespace);
