-- The tables of locks, of their queue and of permits, and the tokens.
--
-- Run each of these files in one transaction, with search_path set to the schema of the tables.
-- Names that must resolve under another search_path later are qualified with "<here>", for which
-- pin_functions(), at the end, puts in the schema. Until then check_function_bodies is off where a
-- body is looked at that names it.

-- One sequence for all names: after the row of an idle name is pruned, its tokens still never
-- repeat. CACHE must stay 1: with a cached range, a session would hand out tokens below those that
-- other sessions have drawn since.
CREATE SEQUENCE fencing_tokens AS bigint CACHE 1;

-- The domain checks a name when it is inserted. A CHECK on the tables would be parsed and evaluated
-- at each change of a row, although the name never changes. The collation of each text key is "C": the order
-- of any other one belongs to a library, with which it changes, and an index then misses rows that are there.
CREATE DOMAIN lock_name AS text COLLATE pg_catalog."C" CHECK (octet_length(VALUE) BETWEEN 1 AND 512);

-- A channel that NOTIFY accepts, also with "_next" at its end: without what follows a slash, it is not empty.
-- Any other text would make each release of the lock fail.
CREATE DOMAIN wake_channel AS text COLLATE pg_catalog."C" CHECK (octet_length(VALUE) BETWEEN 1 AND 58 AND left(VALUE, 1) <> '/');

-- Times whose differences fit into the durations of clients, 292 years in nanoseconds. Older servers
-- can't subtract infinity. A free lock expires at -infinity.
CREATE DOMAIN finite_time AS timestamptz CHECK (VALUE >= '1970-01-01 00:00+00' AND VALUE < '2262-01-01 00:00+00');
CREATE DOMAIN lease_end AS timestamptz CHECK (VALUE < '2262-01-01 00:00+00' AND (VALUE >= '1970-01-01 00:00+00' OR VALUE = '-infinity'));

-- Numbers of permits whose sums and differences fit into an integer.
CREATE DOMAIN permit_count AS integer CHECK (VALUE BETWEEN 1 AND 1073741824);
CREATE DOMAIN permit_sum AS integer CHECK (VALUE BETWEEN 0 AND 1073741824);

-- token_follows() checks it.
CREATE DOMAIN token_value AS bigint;

-- A free lock keeps its row: holder is null, expires_at is -infinity, and token is that of its last
-- grant. If holder is null and expires_at is in the future, the lock was released,
-- and nobody may acquire it before that time (WithMinHold).
--
-- last_holder, ended_at and last_end describe the last grant that has ended. The statement that
-- ends it writes them, or the next grant if it has expired, so they cost no separate write.
--
-- Only name is indexed, so that every change of a row is a heap-only update. A takeover therefore
-- changes no key column, and would not conflict with a guard's FOR KEY SHARE, so each statement
-- that changes token locks the row FOR UPDATE first. Renewals and releases do not, so a guard does
-- not block them.
CREATE TABLE distributed_locks (
    name        lock_name   PRIMARY KEY,
    token       token_value NOT NULL, -- of the last grant; grows with every grant of any name; of a name with permits see lock_permits
    version     bigint      NOT NULL, -- grows by one on every change of the row; 1 follows 2^63-1
    ticket      bigint      NOT NULL DEFAULT 0, -- of the last waiter that was granted the lock: tickets up to it are used or were skipped
    acquired_at finite_time NOT NULL,
    expires_at  lease_end   NOT NULL, -- by the server's clock
    ended_at    finite_time, -- when the last grant that is over was released, revoked or expired
    request     uuid, -- the attempt that was granted the lock, so that a repeated request is recognized
    holder      text,
    labels      jsonb       NOT NULL DEFAULT '{}',
    last_holder     text,
    last_end        text, -- released, expired or revoked
    release_request text, -- the reason why the holder is asked to release the lock; null if it is not asked
    revoked_token   bigint, -- of the last grant that was revoked, so that its holder learns the reason
    revoked_reason  text,
    revoked_permits jsonb, -- of a name with permits: the reasons of the grants that were revoked, by token
    capacity        permit_count, -- the number of permits of a semaphore, 2^30 for a readers-writer lock; null for a lock with one holder
    in_use          permit_sum, -- the permits in lock_permits, expired ones too until an acquire needs them
    room_since      finite_time -- not before that time could the head of the queue be granted what it wants; with one holder not before ended_at either
);
COMMENT ON TABLE distributed_locks IS 'pglock: one row a lock name, held or free';

-- The wait queue, which docs/explanation/the-queue.md describes: one row per process and name,
-- first come first served by ticket. A ticket is valid until it expires, or until the lock's row
-- has one as high. A client that waits again updates its row, and no index. The table is unlogged:
-- after a crash of the server clients queue again, which costs order, never exclusion.
--
-- A caller that waits for several names has one ticket, in a row for each of them, whose client is
-- its channel, a slash and a number. Its turn may come at one name long before the others, so the
-- queue does not skip it while it is alive (keep_until). Neither does it skip a head that finds the
-- row of a free lock in use by a guard.
--
-- The queue does not see rows in two other states. A client that watches the lock is notified of
-- each release. One in the overflow list of a long queue does not listen, and looks now and then:
-- see refresh_tickets.sql.
CREATE TYPE waiter_state AS ENUM ('queued', 'overflow', 'watching');
CREATE UNLOGGED TABLE lock_waiters (
    name       lock_name   NOT NULL,
    client     wake_channel NOT NULL, -- the channel that notifies it; after a slash, which of its callers waits for several names
    ticket     bigint      NOT NULL DEFAULT nextval('fencing_tokens'), -- 0 of a client that watches
    state      waiter_state NOT NULL DEFAULT 'queued',
    expires_at finite_time NOT NULL,
    since      finite_time NOT NULL DEFAULT clock_timestamp(), -- when the first caller of this client began to wait
    holder     text        NOT NULL DEFAULT '', -- the name of that caller, which others see when it holds the lock
    weight     permit_count NOT NULL DEFAULT 1, -- the permits that it needs; about those of a client that has several waiters
    keep_until lease_end   NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (name, client)
);
COMMENT ON TABLE lock_waiters IS 'pglock: the waiters of each name, first come first served by ticket';

-- The permits of semaphores, and of the readers of readers-writer locks: one row per grant, but for
-- a grant of all permits, which is exclusive and in the gate, the row of the name in
-- distributed_locks. 0003_acquire.up.sql says how both change. A released permit that a guarded
-- transaction still uses keeps its row, without a holder, until an acquire needs it.
--
-- The token of a grant here is above the token that the gate had before. The gate then gets a later
-- one, which belongs to no grant: its request may be that of another grant, which has ended, and a
-- client that revokes that request reads both from the gate.
CREATE TABLE lock_permits (
    name        lock_name   NOT NULL,
    token       token_value NOT NULL,
    weight      permit_count NOT NULL,
    version     bigint      NOT NULL,
    acquired_at finite_time NOT NULL,
    expires_at  lease_end   NOT NULL,
    request     uuid        NOT NULL,
    holder      text, -- null once released
    labels      jsonb       NOT NULL DEFAULT '{}',
    release_request text, -- as above
    PRIMARY KEY (name, token),
    UNIQUE (name, request)
);
COMMENT ON TABLE lock_permits IS 'pglock: the permits of semaphores and of readers; the row of the name in distributed_locks has their number';

-- Returns the version of a row after its next change: 1 follows the largest, which any role could have written.
-- The server inlines it.
CREATE FUNCTION next_version(version bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS 'SELECT version OPERATOR(pg_catalog.%) 9223372036854775807 OPERATOR(pg_catalog.+) 1';

-- Makes the transaction wait for its commit, because a grant must survive a crash whatever
-- synchronous_commit says, and the server report a canceled wait for a standby, by a warning. The
-- other values, such as local, survive a crash of this server, and stay the operator's choice. It
-- returns true, so that statements call it as a condition, and is inlined there, so everything is
-- qualified.
CREATE FUNCTION commit_durably() RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT (pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'off' OR pg_catalog.set_config('synchronous_commit', 'on', true) OPERATOR(pg_catalog.=) 'on')
       AND (pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.<>) 'error' OR pg_catalog.set_config('client_min_messages', 'warning', true) OPERATOR(pg_catalog.=) 'warning')
$$;

-- Lets the transaction not wait for its commit, because a crash may lose what the statement does.
-- But what the transaction has changed before may be a grant, or a write of the caller: then the
-- setting stays. It returns true and is inlined, as above.
CREATE FUNCTION commit_lazily() RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL OR pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.=) 'off'
$$;

-- The tables are small and change often: half of each page is room for the next versions of its
-- rows, and vacuum runs early. Their columns have no statistics, because a sample taken while the
-- locks are free makes the planner expect no held row, and a batch then reads rows times names.
-- Neither has the name of a waiter: a name with many of them would make the planner expect as many
-- for each, and read the queues of all names.
DO $settings$
DECLARE
    t record;
BEGIN
    FOR t IN
        SELECT a.attrelid::regclass AS name, string_agg(format('ALTER COLUMN %I SET STATISTICS 0', a.attname), ', ') AS columns
        FROM pg_attribute AS a
        WHERE a.attrelid = ANY ('{distributed_locks,lock_waiters,lock_permits}'::regclass[]) AND a.attnum > 0
          AND (a.attname <> 'name' OR a.attrelid = 'lock_waiters'::regclass)
        GROUP BY a.attrelid
    LOOP
        EXECUTE format('ALTER TABLE %s SET (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05,'
                       ' autovacuum_vacuum_cost_delay = 0), %s', t.name, t.columns);
    END LOOP;
END
$settings$;

-- The state of lift_fencing_tokens() and of pruning: the range of the last token, and its cluster. A
-- restore of data into a migrated schema can add a second row; lift_fencing_tokens() merges them.
CREATE TABLE fencing_epoch (
    system   bigint, -- identifier of the cluster; null if the server does not report it
    timeline bigint NOT NULL, -- of the write-ahead log
    epoch    bigint NOT NULL, -- the range of tokens from epoch * 2^44 on; grows with every promotion
    pruned   bigint NOT NULL DEFAULT 0, -- no pruned row had a higher token
    id       uuid   PRIMARY KEY DEFAULT gen_random_uuid() -- a publication of all tables refuses changes of one without a key
);
COMMENT ON TABLE fencing_epoch IS 'pglock: the range of the last token, and its cluster; empty until the first client connects';

-- What depends on the server, and next_ticket(), which draws a ticket. The timeline of the
-- write-ahead log, which grows at each promotion, is in the upper bits of a token, above 2^44
-- tokens, so that a standby that was promoted without the last grants still draws larger ones. The
-- name of a WAL file begins with it in eight hex digits. LANGUAGE sql without a SET clause, so that
-- the planner inlines the draws, and everything is qualified.
DO $install$
DECLARE
    draw     text := format('pg_catalog.nextval(%L::pg_catalog.regclass)', quote_ident(current_schema()) || '.fencing_tokens');
    timeline text := $$('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))
        ::pg_catalog.bit(32)::pg_catalog.int8$$;
    system   text := '(SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c)';
BEGIN
    BEGIN
        PERFORM pg_walfile_name(pg_current_wal_lsn());
    EXCEPTION WHEN undefined_function OR feature_not_supported OR insufficient_privilege THEN
        -- A promotion can't be detected: each new connection takes case 1 of lift_fencing_tokens().
        timeline := '1::pg_catalog.int8';
        system := 'NULL::pg_catalog.int8';
    END;
    BEGIN
        PERFORM system_identifier FROM pg_control_system();
    EXCEPTION WHEN undefined_function OR undefined_table OR feature_not_supported OR insufficient_privilege THEN
        system := 'NULL::pg_catalog.int8'; -- as above
    END;
    EXECUTE format('CREATE FUNCTION wal_timeline() RETURNS bigint LANGUAGE sql VOLATILE AS %L', 'SELECT ' || timeline);
    EXECUTE format('CREATE FUNCTION cluster_identifier() RETURNS bigint LANGUAGE sql VOLATILE AS %L', 'SELECT ' || system);
    EXECUTE format('CREATE FUNCTION next_ticket() RETURNS bigint LANGUAGE sql VOLATILE AS %L', 'SELECT ' || draw);
    EXECUTE format('CREATE FUNCTION next_fencing_token() RETURNS bigint LANGUAGE sql VOLATILE AS %L',
        format('SELECT %s OPERATOR(pg_catalog.+) ((%s OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog.*) 17592186044416::pg_catalog.int8)', draw, timeline));
END
$install$;
COMMENT ON FUNCTION next_fencing_token() IS 'pglock: a token above every token drawn before, also after a failover';

CREATE FUNCTION highest_token() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s.last_value - (NOT s.is_called)::int + ("<here>".wal_timeline() - 1) * 17592186044416 FROM "<here>".fencing_tokens AS s);
END
$$;

-- Returns the token below which a row is evidence of what was drawn: the middle of the present range of tokens.
-- No sequence comes that far by drawing, so a role that forges higher ones can't use up the ranges.
CREATE FUNCTION evidence_bound() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT int8 := 17592186044416;
BEGIN
    RETURN greatest("<here>".highest_token() / size, (SELECT max(e.epoch) FROM "<here>".fencing_epoch AS e)) * size + size / 2;
END
$$;

-- Sets the sequence above all tokens if something has set it back, and returns the highest token
-- drawn: see docs/explanation/tokens-through-failover.md. A client calls it for each new
-- connection. It reads one row of each table, however many names there are.
--
-- 1. The cluster or its timeline has changed since the last call. pg_upgrade and a restored dump
--    begin with timeline 1 again and keep the sequence: fencing_epoch has the upper bits of the
--    last token. Two standbys may choose the same timeline, and logical replication copies rows
--    without their sequence, so the sequence skips to the server's clock, at 10,000 ticks a second.
-- 2. The row of the name "evidence" has a higher token or ticket. A client passes the name of the
--    lock with the highest token that it was granted. A role that may write rows can forge both:
--    see evidence_bound().
--
-- It never sets the sequence back, although others draw tokens meanwhile: it draws those up to the
-- target, or, if these are more than 2^18, sets the sequence at once, because clients do not draw
-- as many between its read of the sequence and the next statement. The table lock, for which only
-- the owner has the rights, keeps two calls from lifting it twice.
CREATE FUNCTION lift_sequence(evidence text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size          CONSTANT int8 := 17592186044416;
    this_system   CONSTANT int8 := "<here>".cluster_identifier();
    this_timeline CONSTANT int8 := "<here>".wal_timeline();
    before        CONSTANT int8 := (this_timeline - 1) * size; -- what next_fencing_token() adds
    tokens        CONSTANT regclass := '<here>' || '.fencing_tokens';
    far           CONSTANT int8 := 262144;
    last          int8; -- value of the sequence
    target        int8;
    was           record;
BEGIN
    FOR locked IN 0..1 LOOP
        SELECT count(*) = 1 AND coalesce(bool_and(e.system = this_system AND e.timeline = this_timeline), false) AS same,
               count(*) AS rows, coalesce(max(e.epoch), 0) AS epoch, coalesce(max(e.pruned), 0) AS pruned
        INTO was FROM "<here>".fencing_epoch AS e;
        last := "<here>".highest_token() - before;
        target := greatest(last, was.pruned - before, (
            SELECT max(seen) FROM "<here>".distributed_locks AS l, unnest(ARRAY[l.token - before, l.ticket]) AS seen
            WHERE l.name = evidence AND seen < "<here>".evidence_bound() - before));
        IF was.same AND target = last THEN
            RETURN last + before;
        END IF;
        EXIT WHEN locked = 1;
        LOCK TABLE "<here>".fencing_epoch IN SHARE ROW EXCLUSIVE MODE;
    END LOOP;
    IF NOT was.same AND (was.rows > 0 OR EXISTS (SELECT FROM "<here>".distributed_locks)) THEN
        -- A second call changes nothing: a failed transaction does not set a sequence back.
        target := greatest(target, (was.epoch - (this_timeline - 1)) * size + mod(last, size));
        target := greatest(target, target / size * size +
            floor(extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00') * 10000)::int8);
    END IF;
    IF target - last > far THEN
        PERFORM setval(tokens, target);
    ELSIF target > last THEN
        WHILE nextval(tokens) < target LOOP
        END LOOP;
    END IF;
    IF NOT was.same OR (target + before) / size > was.epoch THEN
        DELETE FROM "<here>".fencing_epoch;
        INSERT INTO "<here>".fencing_epoch VALUES (this_system, this_timeline, (target + before) / size, was.pruned);
    END IF;
    RETURN target + before;
END
$$;

-- Does so for a role that may draw tokens. A role that only reads gets the highest token drawn, because in an
-- open transaction it would keep the table locked, and all new connections waiting.
CREATE FUNCTION lift_fencing_tokens(evidence text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_function_privilege('<here>' || '.lift_sequence(text)', 'EXECUTE') THEN
        RETURN "<here>".lift_sequence(evidence);
    END IF;
    RETURN "<here>".highest_token();
END
$$;
COMMENT ON FUNCTION lift_fencing_tokens(text) IS 'pglock: set the sequence above all tokens, after a promotion, pg_upgrade or a restore; returns the highest token drawn';

-- Raises the mark "pruned", from which lift_fencing_tokens() knows that tokens were drawn whose
-- rows are gone, and returns the highest token that may be deleted: a row above the sequence is the
-- only evidence of its token. A first grant that stalls needs no mark, because it draws its token
-- while it holds its row, which was inserted after the sequence had passed those of the name's
-- pruned grants.
CREATE FUNCTION raise_pruned(token bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark CONSTANT int8 := least(token, "<here>".highest_token());
BEGIN
    UPDATE "<here>".fencing_epoch AS e SET pruned = mark WHERE e.pruned < mark;
    RETURN CASE WHEN EXISTS (SELECT FROM "<here>".fencing_epoch) THEN mark ELSE 0 END; -- 0: there is no row for the mark
END
$$;

-- Fails unless the token is above those of all pruned rows. After the insert of a granted row, there was
-- then no other grant of the name since its token was drawn.
CREATE FUNCTION above_pruned(token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM "<here>".fencing_epoch AS e WHERE e.pruned >= token) THEN
        RAISE EXCEPTION 'pglock: a row with a later token was pruned meanwhile' USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    RETURN true;
END
$$;

-- A role that may change rows could leave a token behind that the next grant can't add 1 to. Beyond
-- 2^62 a token therefore is one that was drawn, or there must be a row with a token that is at most
-- 2 smaller. Rows that are replicated, or restored, when the table has no index yet, are not
-- checked. A trigger would cost each release and renewal some time.
CREATE FUNCTION token_follows(token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN token <= "<here>".highest_token()
        OR EXISTS (SELECT FROM "<here>".distributed_locks AS l WHERE l.token >= token_follows.token - 2)
        OR current_setting('session_replication_role') = 'replica'
        OR NOT EXISTS (
            SELECT FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
            WHERE c.relnamespace = '<here>'::regnamespace AND c.relname = 'distributed_locks');
END
$$;
ALTER DOMAIN token_value ADD CONSTRAINT room_for_further_grants CHECK (VALUE <= 4611686018427387904 OR token_follows(VALUE));

-- Returns null, or why locks are not safe on this server, a colon, and the remedy. Nothing else
-- would tell: all statements succeed. A client calls it for each new connection, because the cause
-- may come later.
--
-- YugabyteDB raises CACHE 1 of the sequence to 100. The order of an index belongs to a C library:
-- see lock_name. Logical replication writes rows without the checks of the protocol. The tables of
-- pglogical and Spock are read only if a superuser owns them, because a stranger's table may run
-- code when it is read.
CREATE FUNCTION unsafe_server() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tables  CONSTANT text[] := '{distributed_locks,lock_waiters,lock_permits,once_keys}';
    reason  CONSTANT text := '%s writes to %s, so that two servers could grant a lock to two holders, whose rows would merge silently: '
        'leave the tables of pglock out of its publications or replication sets and refresh it, or drop %s, before clients connect';
    cached  int8;
    written record;
    origin  text;
    t       record;
BEGIN
    SELECT s.seqcache INTO cached FROM pg_sequence AS s WHERE s.seqrelid = ('<here>' || '.fencing_tokens')::regclass;
    IF cached > 1 THEN
        RETURN format('sessions cache %s values of the sequence fencing_tokens, so that a later holder could get a smaller token: '
            'set ysql_sequence_cache_minval=1 on YugabyteDB, run ALTER SEQUENCE %s.fencing_tokens CACHE 1, and restart all clients', cached, '<here>');
    END IF;
    SELECT format('the index %s orders names by the collation %s, so that with another C library a held lock could be granted again: '
                  'give the column the collation "C"', c.relname, o.id::regcollation) INTO origin
    FROM pg_class AS own JOIN pg_index AS i ON i.indrelid = own.oid JOIN pg_class AS c ON c.oid = i.indexrelid CROSS JOIN unnest(i.indcollation) AS o (id)
    WHERE own.relnamespace = '<here>'::regnamespace AND own.relname = ANY (tables || 'fencing_high_water'::text) AND o.id <> 0 AND o.id <> 'pg_catalog."C"'::regcollation LIMIT 1;
    IF FOUND THEN
        RETURN origin;
    END IF;
    SELECT format('%s is unlogged, so that a crash or a promotion empties it, and a held lock could be granted again: ALTER %s %1$s SET LOGGED',
                  c.oid::regclass, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END) INTO origin
    FROM pg_class AS c WHERE c.relnamespace = '<here>'::regnamespace AND c.relpersistence = 'u'
      AND c.relname = ANY ('{distributed_locks,lock_permits,once_keys,fencing_tokens,fencing_epoch,fencing_high_water,fencing_secret}') LIMIT 1;
    IF FOUND THEN
        RETURN origin;
    END IF;
    FOR t IN
        SELECT c.oid::regclass AS name FROM pg_class AS c WHERE c.relnamespace = '<here>'::regnamespace AND c.relname = ANY (tables || 'nested_waits'::text)
          AND row_security_active(c.oid) AND NOT EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid) LIMIT 1
    LOOP
        RETURN format('row security hides all rows of %s from role %I: ALTER TABLE %1$s DISABLE ROW LEVEL SECURITY, or make a policy that shows them', t.name, current_user);
    END LOOP;
    IF has_table_privilege('pg_subscription_rel', 'SELECT') THEN
        SELECT c.relname, r.srsubid INTO written FROM pg_subscription_rel AS r JOIN pg_class AS c ON c.oid = r.srrelid
        WHERE c.relnamespace = '<here>'::regnamespace AND c.relname = ANY (tables) LIMIT 1;
        IF FOUND THEN
            IF has_column_privilege('pg_subscription', 'oid', 'SELECT') THEN -- not for all roles before PostgreSQL 14
                SELECT quote_ident(s.subname) INTO origin FROM pg_subscription AS s WHERE s.oid = written.srsubid;
            END IF;
            RETURN format(reason, 'a subscription', written.relname, coalesce('the subscription ' || origin, 'it'));
        END IF;
    END IF;
    FOR t IN
        SELECT n.nspname AS extension, c.oid::regclass AS name
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS r ON r.oid = c.relowner
        WHERE n.nspname IN ('pglogical', 'spock') AND c.relname = 'local_sync_status' AND c.relkind = 'r' AND r.rolsuper
          AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    LOOP
        EXECUTE format('SELECT to_jsonb(s) ->> ''sync_relname'' FROM %s AS s WHERE to_jsonb(s) ->> ''sync_nspname'' = $1'
                       ' AND to_jsonb(s) ->> ''sync_relname'' = ANY ($2) LIMIT 1', t.name)
            INTO origin USING (SELECT n.nspname::text FROM pg_namespace AS n WHERE n.oid = '<here>'::regnamespace), tables;
        IF origin IS NOT NULL THEN
            RETURN format(reason, 'a subscription of ' || t.extension, origin, 'it');
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION unsafe_server() IS 'pglock: why locks are not safe on this server, and the remedy; null if they are';

-- Clients compare it with the version that they need.
CREATE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_schema_version() IS 'pglock: the number of the last migration';

-- A migration that takes away what older programs use replaces it. One that only adds does not, so that
-- programs can be upgraded, and rolled back, one after the other.
CREATE FUNCTION pglock_oldest_client() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_oldest_client() IS 'pglock: the migration that a program must know at least';

-- Revokes what ALTER DEFAULT PRIVILEGES has granted to others on the objects that this transaction
-- has made. Only PUBLIC keeps what the server itself grants it, but not on types: tables that a
-- role with USAGE on the schema has built on them would block migrating down. Other rights are the
-- decision of the grant functions. An object that was changed or replaced keeps its rights, because the
-- programs that run need them. The tables of the migrations themselves were made before: a role
-- with more than SELECT could block or redirect them.
CREATE FUNCTION revoke_defaults(here regnamespace) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT DISTINCT format('REVOKE ALL ON %s %s FROM %s', o.kind, o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
        FROM (
            SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid, c.oid::regclass::text, c.relowner, c.relacl, false,
                   (SELECT bool_and(age(t.xmin) <= 0) FROM pg_attribute AS t WHERE t.attrelid = c.oid), c.relname = 'pglock_migrations'
            FROM pg_class AS c WHERE c.relnamespace = here
            UNION ALL
            SELECT 'FUNCTION', p.oid, p.oid::regprocedure::text, p.proowner, p.proacl, true, age(p.xmin) <= 0, false
            FROM pg_proc AS p WHERE p.pronamespace = here
            UNION ALL
            SELECT 'TYPE', t.oid, t.oid::regtype::text, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner)), false, age(t.xmin) <= 0, t.typname = 'pglock_migrations'
            FROM pg_type AS t WHERE t.typnamespace = here AND t.typelem = 0
        ) AS o (kind, oid, name, owner, acl, is_public, is_new, is_record), aclexplode(o.acl) AS a
        WHERE a.grantee <> o.owner AND NOT (a.grantee = 0 AND o.is_public)
          AND (o.is_new OR o.is_record AND a.privilege_type <> 'SELECT')
          AND NOT EXISTS (SELECT FROM pg_shdepend AS d -- the right is older, so the function was only replaced
                          WHERE o.kind = 'FUNCTION' AND d.classid = 'pg_proc'::regclass AND d.objid = o.oid AND d.deptype = 'a'
                            AND d.dbid = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database())
                            AND d.refclassid = 'pg_authid'::regclass AND d.refobjid = a.grantee AND age(d.xmin) > 0)
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

-- Puts the schema into the new functions: their statements name it as "<here>", their string
-- literals as '<here>', and the settings that they use as <schema>. Then it revokes default
-- privileges, so grants to PUBLIC come after it.
CREATE FUNCTION pin_functions(here text DEFAULT pg_catalog.quote_ident(pg_catalog.current_schema())) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    setting CONSTANT text := CASE WHEN here ~ '^[a-z_][a-z0-9_]*$' THEN here
                                  ELSE 'x' || to_hex(hashtextextended((SELECT n.nspname::text FROM pg_namespace AS n WHERE n.oid = here::regnamespace), 0)) END;
    f       record;
BEGIN
    FOR f IN
        -- pg_get_functiondef ends with $function$, the text of the function, $function$ and a newline.
        SELECT left(pg_get_functiondef(p.oid), -length('$function$' || p.prosrc || '$function$' || chr(10))) AS head,
               (SELECT string_agg(replace(part, '"<here>"', here), quote_literal(here) ORDER BY n)
                FROM unnest(string_to_array(replace(p.prosrc, '<schema>', setting), '''<here>''')) WITH ORDINALITY AS u(part, n)) AS text
        FROM pg_proc AS p
        WHERE p.pronamespace = here::regnamespace AND age(p.xmin) <= 0 AND p.prosrc ~ '<here>|<schema>'
          AND p.proname <> ALL ('{pin_functions,next_fencing_token,next_ticket}') -- these have the schema's name
    LOOP
        EXECUTE f.head || quote_literal(f.text);
    END LOOP;
    EXECUTE format('SELECT %s.revoke_defaults(%L)', here, here);
END
$$;

-- grant_user() grants these rights.
REVOKE EXECUTE ON FUNCTION highest_token, evidence_bound, lift_sequence, lift_fencing_tokens, raise_pruned, above_pruned, token_follows, revoke_defaults,
    pin_functions FROM PUBLIC;

SELECT pin_functions();
