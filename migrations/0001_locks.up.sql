-- The lock table, its queue and its tokens, and the statements that are functions: those of permits and
-- of several names.
--
-- Run this file in one transaction, with search_path set to the schema of the tables. Names that must
-- resolve under another search_path later are qualified with "<here>", for which the end of this file
-- puts in the schema. The functions run with the rights of their caller, unless they say otherwise.

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
--
-- A row with a smaller ticket stands in line before the queue, which the queue does not see either: of
-- all that wait for a name, only the first ones need a listening connection, since before PostgreSQL 19
-- each notification wakes all sessions that listen. The ticket -1 - n is the place n in that line. Its
-- client looks now and then (refresh_tickets.sql), and gets the ticket n when it is near enough, or a new one
-- if that has been passed: those in line are overtaken while the queue is empty.
CREATE UNLOGGED TABLE lock_waiters (
    name       lock_name   NOT NULL,
    client     wake_channel NOT NULL, -- the channel that notifies it; after a slash, which of its callers waits for several names
    ticket     bigint      NOT NULL DEFAULT nextval('fencing_tokens'),
    expires_at finite_time NOT NULL,
    since      finite_time NOT NULL DEFAULT clock_timestamp(), -- when the first caller of this client began to wait
    holder     text        NOT NULL DEFAULT '', -- the name of that caller, which others see when it holds the lock
    weight     permit_count NOT NULL DEFAULT 1, -- the permits that it needs; about those of a client that has several waiters
    keep_until lease_end   NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (name, client)
);
COMMENT ON TABLE lock_waiters IS 'pglock: the waiters of each name, first come first served by ticket';

-- The permits of semaphores, and of the readers of readers-writer locks: one row per grant. The row
-- of the name in distributed_locks is the gate: a statement that grants or releases permits locks it
-- first. A grant of all permits at once is exclusive. It has no row here, but is in the gate like
-- any other lock.
--
-- The token of a grant here is above the token that the gate had before. The gate then gets a later one, which
-- belongs to no grant: its request may be that of another grant, which has ended, and a client that revokes that
-- request reads both from the gate.
--
-- A released permit that a
-- guarded transaction still uses keeps its row, without a holder, until an acquire needs it.
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

-- The tables are small and change often: half of each page is room for the next versions of its rows,
-- and vacuum runs early. Their columns have no statistics, because these change from all free to all
-- held between two samples: a sample taken while the locks are free makes the planner expect no held
-- row, and a batch then reads rows times names. Neither has the name of a waiter: a name with many of
-- them would make the planner expect as many for each, and read the queues of all names.
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

-- The views of holders and of waiters. A role needs no right on the tables to read these, only
-- SELECT on the view and USAGE on the schema. security_barrier keeps a cheap function of the reader
-- from seeing the rows that the view leaves out.
CREATE VIEW locks_held WITH (security_barrier) AS
SELECT l.name::text AS name, left(l.holder, 512) AS holder, l.token::bigint, l.acquired_at::timestamptz AS since,
       l.expires_at - clock_timestamp() AS remaining, CASE WHEN octet_length(l.labels::text) < 65536 THEN l.labels ELSE '{}' END AS labels, true AS exclusive, nullif(l.capacity, 1073741824)::integer AS permits
FROM distributed_locks AS l
WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
UNION ALL
SELECT p.name::text, left(p.holder, 512), p.token::bigint, p.acquired_at::timestamptz, p.expires_at - clock_timestamp(), CASE WHEN octet_length(p.labels::text) < 65536 THEN p.labels ELSE '{}' END,
       false, CASE WHEN l.capacity < 1073741824 THEN p.weight END
FROM lock_permits AS p
JOIN distributed_locks AS l ON l.name = p.name
WHERE p.holder IS NOT NULL AND p.expires_at > clock_timestamp();

COMMENT ON VIEW locks_held IS 'pglock: the locks that are held, by the server''s clock';
COMMENT ON COLUMN locks_held.remaining IS 'until the grant expires unless renewed';
COMMENT ON COLUMN locks_held.exclusive IS 'false for a reader, and for a holder of some of the permits of a semaphore';
COMMENT ON COLUMN locks_held.permits IS 'of a semaphore: how many of them the holder has; null for other locks';

CREATE VIEW locks_waiting WITH (security_barrier) AS
SELECT w.name::text AS name, CASE WHEN w.ticket > 0 THEN w.ticket END AS ticket, left(w.holder, 512) AS client, clock_timestamp() - w.since AS waited,
       l.capacity IS NULL OR w.weight >= l.capacity AS exclusive, CASE WHEN l.capacity < 1073741824 THEN w.weight END::integer AS permits
FROM lock_waiters AS w
LEFT JOIN distributed_locks AS l ON l.name = w.name
WHERE (w.ticket > coalesce(l.ticket, 0) OR w.ticket < -1) AND w.expires_at > clock_timestamp();

COMMENT ON VIEW locks_waiting IS 'pglock: the waiters of each name; the smallest ticket is the head of the queue';
COMMENT ON COLUMN locks_waiting.ticket IS 'null for one that stands in line before the queue';
COMMENT ON COLUMN locks_waiting.exclusive IS 'false for one that waits to be a reader, or for some of the permits of a semaphore';
COMMENT ON COLUMN locks_waiting.permits IS 'of a semaphore: how many of them the waiter needs; null for other locks';
COMMENT ON COLUMN locks_waiting.client IS 'the name of the waiter, as others see it when it holds the lock';

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

-- What depends on the server: next_fencing_token(), wal_timeline() and cluster_identifier(). next_ticket()
-- draws a ticket, or a place in the line before a queue.
--
-- The timeline of the write-ahead log grows at each promotion, and is in the upper bits of a token. So
-- a standby that was promoted without the last grants still draws larger tokens than the old primary.
-- 2^44 tokens fit in a timeline. The name of a WAL file begins with the timeline in eight hex digits.
-- LANGUAGE sql without a SET clause, so that the planner inlines the draws, and everything is qualified.
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

-- Returns the highest token drawn.
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

-- Sets the sequence above all tokens if something has set it back, and returns the highest token drawn.
-- A client calls it for each new connection. It reads one row of each table, however many names there
-- are.
--
-- 1. The cluster or its timeline has changed since the last call.
--    * pg_upgrade and a restored dump begin with timeline 1 again and keep the sequence: fencing_epoch
--      has the upper bits of the last token.
--    * Two standbys that are promoted one after the other, without a connection between them, choose
--      the same timeline. Logical replication copies rows without their sequence. So the sequence skips
--      to the server's clock, at 10,000 ticks a second. The order of tokens then depends on the clocks
--      of the two servers, and on fewer tokens than ticks between the two promotions.
-- 2. The row of the name "evidence" has a higher token or ticket. A client passes the name of the lock
--    with the highest token that it was granted. A role that may write rows can forge both: see evidence_bound().
--
-- The table lock prevents a slow caller from setting the sequence back. It needs rights on the table
-- that only the owner of this function has.
CREATE FUNCTION lift_sequence(evidence text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size          CONSTANT int8 := 17592186044416;
    this_system   CONSTANT int8 := "<here>".cluster_identifier();
    this_timeline CONSTANT int8 := "<here>".wal_timeline();
    before        CONSTANT int8 := (this_timeline - 1) * size; -- what next_fencing_token() adds
    last          int8; -- value of the sequence
    target        int8;
    same          boolean;
    was           record;
BEGIN
    FOR locked IN 0..1 LOOP
        SELECT count(*) = 1 AND coalesce(bool_and(e.system = this_system AND e.timeline = this_timeline), false) AS same,
               count(*) AS rows, coalesce(max(e.epoch), 0) AS epoch, coalesce(max(e.pruned), 0) AS pruned
        INTO was FROM "<here>".fencing_epoch AS e;
        same := was.same;
        last := "<here>".highest_token() - before;
        target := greatest(last, was.pruned - before, (
            SELECT max(seen) FROM "<here>".distributed_locks AS l, unnest(ARRAY[l.token - before, l.ticket]) AS seen
            WHERE l.name = evidence AND seen < "<here>".evidence_bound() - before));
        IF same AND target = last THEN
            RETURN last + before;
        END IF;
        EXIT WHEN locked = 1;
        LOCK TABLE "<here>".fencing_epoch IN SHARE ROW EXCLUSIVE MODE;
    END LOOP;
    IF NOT same AND (was.rows > 0 OR EXISTS (SELECT FROM "<here>".distributed_locks)) THEN
        -- A second call changes nothing: a failed transaction does not set a sequence back.
        target := greatest(target, (was.epoch - (this_timeline - 1)) * size + mod(last, size));
        target := greatest(target, target / size * size +
            floor(extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00') * 10000)::int8);
    END IF;
    IF target > last THEN
        PERFORM setval(('<here>' || '.fencing_tokens')::regclass, target);
    END IF;
    IF NOT same OR (target + before) / size > was.epoch THEN
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

-- Raises the mark "pruned", from which lift_fencing_tokens() knows that tokens were drawn whose rows are gone,
-- and returns the highest token that may be deleted: a row above the sequence is the only evidence of its
-- token. A first grant that stalls needs no mark, because it draws its token while it holds the row, and no
-- row that it can hold was there before the sequence had passed those of the name's pruned grants.
CREATE FUNCTION raise_pruned(token bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark int8;
BEGIN
    mark := least(token, "<here>".highest_token());
    UPDATE "<here>".fencing_epoch AS e SET pruned = mark WHERE e.pruned < mark;
    IF NOT EXISTS (SELECT FROM "<here>".fencing_epoch) THEN
        RETURN 0; -- there is no row for the mark
    END IF;
    RETURN mark;
END
$$;

-- Returns null, or why locks are not safe on this server, a colon, and the remedy. Nothing else would tell:
-- all statements succeed. A client calls it for each new connection, because the cause may come later.
--
-- 1. A session that caches values of the sequence draws tokens below those of others. YugabyteDB raises
--    CACHE 1 to 100.
-- 2. Logical replication writes rows without the checks of the protocol, so each of two servers could grant
--    the same lock. The tables of pglogical and Spock are read only if a superuser owns them, because a
--    stranger's table may run code when it is read.
-- 3. The order of an index belongs to a C library: see lock_name.
-- 4. Row security that a tool has switched on hides all rows from the caller.
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

-- Notifies the waiters behind the ticket "used_up" for whom there is room, first come, first served; the
-- head alone if the name has one holder, and therefore no room. Returns whether a waiter was notified.
-- Clients that watch the lock, with ticket -1, are notified too. The payload is the name, or what
-- follows the slash of the client. The next one in the queue learns on a channel of its own that it should
-- look when those that were notified may be dead; not while these have waited for less than a second, since
-- a new waiter looks by itself, nor does a caller for several names, which looks often.
--
-- Each statement of a function has a snapshot of its own, so this one sees the tickets that were drawn
-- while the release waited for its turn. Without a waiter it sends no notification, because NOTIFY
-- holds a lock of the whole cluster until the commit is done.
CREATE FUNCTION wake_next(lock_name text, used_up bigint, room integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    w     record;
    woken boolean := false;
    since timestamptz; -- of the last one that was notified
BEGIN
    FOR w IN
        SELECT q.client, q.ticket, q.weight, q.since
        FROM "<here>".lock_waiters AS q
        WHERE q.name = lock_name AND (q.ticket > used_up OR q.ticket = -1) AND q.expires_at > pg_catalog.clock_timestamp()
        ORDER BY q.ticket
    LOOP
        IF w.ticket <> -1 THEN
            IF w.weight > room OR woken AND room IS NULL THEN
                IF since < pg_catalog.clock_timestamp() - interval '1 s' AND pg_catalog.strpos(w.client, '/') = 0 THEN
                    PERFORM pg_catalog.pg_notify(w.client || '_next', lock_name);
                END IF;
                EXIT;
            END IF;
            room := room - w.weight;
            woken := true;
            since := w.since;
        END IF;
        PERFORM pg_catalog.pg_notify(pg_catalog.split_part(w.client, '/', 1), coalesce(nullif(pg_catalog.split_part(w.client, '/', 2), ''), lock_name));
    END LOOP;
    RETURN woken;
END
$$;

-- The same for many names, each with one holder. Returns the names whose head was notified.
CREATE FUNCTION wake_each(lock_names text[], used_up bigint[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM "<here>".lock_waiters) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(
        SELECT l.name
        FROM ROWS FROM (pg_catalog.unnest(lock_names), pg_catalog.unnest(used_up)) AS l (name, used_up)
        WHERE "<here>".wake_next(l.name, l.used_up, NULL));
END
$$;

-- A role that may change rows could leave a token behind that the next grant can't add 1 to. Beyond
-- 2^62 a token therefore is one that was drawn, or there must be a row with a token that is at most 2 smaller.
-- Rows that are restored or replicated are not checked. While a dump is restored, the table has no
-- index. A trigger would cost each release and each renewal some time, too.
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

-- A migration that takes away what older programs use replaces it. One that only adds does not, so that
-- programs can be upgraded, and rolled back, one after the other.
CREATE FUNCTION pglock_oldest_client() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_oldest_client() IS 'pglock: the migration that a program must know at least';

-- Permits: the statements of semaphores and readers-writer locks; and those of several names.
--
-- A semaphore has n permits. A readers-writer lock has 2^30, of which a reader takes one and a
-- writer takes all. The row of the name in distributed_locks is the gate:
--   in_use       the sum of the weights in lock_permits
--   holder       of an exclusive grant, one of all permits. Its statements are those of any lock
--   request      of the last grant that was exclusive or was released
--
-- A grant moves between the gate and lock_permits, with its token, when a writer becomes a reader
-- and when a semaphore is resized. A statement that ends or renews a grant looks at both.
--
-- Why it is safe:
-- * One at a time. Acquire and release lock the gate first. Each statement of a function has a
--   snapshot of its own, so the statements after the lock see what the previous holder of the gate
--   has committed. One statement could not do both: it would go on with the snapshot of its start.
-- * Losing is free. An acquire that can't succeed finds that out before it locks the gate.
-- * The gate is locked until the commit only, for which an acquire waits for a quarter of a second at
--   most (lock_timeout). The exception is a guard of an exclusive grant, which may last, because it is
--   somebody's transaction. So a statement waits FOR NO KEY UPDATE, which a guard does not delay. It
--   takes FOR UPDATE, with which it meets the guard, only with SKIP LOCKED.
-- * A permit that a guarded transaction uses counts until that transaction ends, whether it has
--   expired or was released: its row is locked, and SKIP LOCKED leaves it alone.
-- * No deadlock. The gate is locked before permits, but for release_permit.sql, which says why it may, and
--   for an acquire that looks whether an expired permit can be freed. Only the end of that grant, which comes
--   late, holds the gate and waits for the permit, until one of both gives up. A statement locks one gate.
-- * Token order. A token is drawn while the gate is locked.
-- * Repeating an acquire is safe: a request has one permit of a name at most (the unique index).

-- Returns how many permits the head of the queue behind the ticket "used_up" needs; 1 without a waiter.
CREATE FUNCTION head_weight(lock text, used_up bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((
        SELECT w.weight FROM "<here>".lock_waiters AS w
        WHERE w.name = lock AND w.ticket > used_up AND w.expires_at > pg_catalog.clock_timestamp()
        ORDER BY w.ticket LIMIT 1), 1);
END
$$;

-- Makes the transaction wait for its commit, because a grant must survive a crash whatever
-- synchronous_commit says, and the server report a canceled wait for a standby, by a warning. It returns
-- true, so that statements call it as a condition, and is inlined there, so everything is qualified.
CREATE FUNCTION commit_durably() RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT (pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'off' OR pg_catalog.set_config('synchronous_commit', 'on', true) OPERATOR(pg_catalog.=) 'on')
       AND (pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.<>) 'error' OR pg_catalog.set_config('client_min_messages', 'warning', true) OPERATOR(pg_catalog.=) 'warning')
$$;

-- Is false, and looks dear to the planner. A statement for one name that has it beside another condition
-- finds its row by the index, however small the table is. To judge a hundred rows instead took two fifths
-- of the server's time for a pair of acquire and release. Functions with many statements have a setting for
-- that, and one that keeps the server from compiling what then looks dear.
CREATE FUNCTION never() RETURNS boolean LANGUAGE plpgsql STABLE COST 1000 AS 'BEGIN RETURN false; END';

-- Deletes expired permits that no guarded transaction uses, and takes their weights off in_use, but no
-- more than are in use: a role may have inserted rows of its own. The caller has locked the gate.
CREATE FUNCTION free_expired_permits(lock text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    freed bigint;
BEGIN
    WITH dead AS MATERIALIZED (
        SELECT p.ctid FROM "<here>".lock_permits AS p
        WHERE p.name = lock AND p.expires_at <= pg_catalog.clock_timestamp()
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "<here>".lock_permits AS p USING dead AS d WHERE p.ctid = d.ctid RETURNING p.weight
    )
    SELECT sum(g.weight) INTO freed FROM gone AS g;
    PERFORM "<here>".add_room(lock, freed);
END
$$;

-- Takes "freed" permits off in_use; null is none. If there is room for the head of the queue from now on,
-- it has its time to come from now on (room_since). The caller has locked the gate.
CREATE FUNCTION add_room(lock text, freed bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE "<here>".distributed_locks AS l
    SET in_use = greatest(l.in_use - freed, 0), version = l.version % 9223372036854775807 + 1,
        room_since = CASE WHEN h.need BETWEEN l.capacity - l.in_use + 1 AND l.capacity - greatest(l.in_use - freed, 0)
                          THEN pg_catalog.clock_timestamp() ELSE l.room_since END
    FROM (SELECT "<here>".head_weight(lock, g.ticket) AS need FROM "<here>".distributed_locks AS g WHERE g.name = lock) AS h
    WHERE l.name = lock AND freed > 0;
END
$$;

-- Frees expired permits, notifies the waiters for whom there is room now if "notify", and returns whether it has
-- notified one. A permit that a guarded transaction still uses counts as room, because its end notifies nobody: the
-- waiter that finds it in use looks often. The caller has given back "freed" permits, and has locked and changed the gate as if the head needed
-- one permit. A head that needs more has its time to come from now on, if this release has made the room for it.
CREATE FUNCTION wake_for_room(lock text, used_up bigint, freed integer, room integer, notify boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    waiting boolean;
    expired boolean;
    need    integer;
BEGIN
    SELECT EXISTS (SELECT FROM "<here>".lock_waiters AS w WHERE w.name = lock),
           EXISTS (SELECT FROM "<here>".lock_permits AS p WHERE p.name = lock AND (p.expires_at <= pg_catalog.clock_timestamp() OR "<here>".never()))
    INTO waiting, expired;
    IF waiting THEN
        need := "<here>".head_weight(lock, used_up);
        IF need > 1 AND need BETWEEN room - freed + 1 AND room THEN
            UPDATE "<here>".distributed_locks AS l SET room_since = pg_catalog.clock_timestamp() WHERE l.name = lock;
        END IF;
    END IF;
    IF expired THEN
        PERFORM "<here>".free_expired_permits(lock);
        room := (SELECT least(l.capacity, l.capacity - l.in_use + (
                     SELECT coalesce(sum(p.weight), 0) FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.expires_at <= pg_catalog.clock_timestamp()))
                 FROM "<here>".distributed_locks AS l WHERE l.name = lock);
    END IF;
    RETURN waiting AND notify AND "<here>".wake_next(lock, used_up, room);
END
$$;

-- Turns the exclusive grant of the gate into one of all permits, with the same token, of which a part can
-- be given back. The caller has locked the gate, and corrects room_since.
CREATE FUNCTION share_grant(lock text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels, release_request)
    SELECT l.name, l.token, l.capacity, 1, l.acquired_at, l.expires_at, l.request, l.holder, l.labels, l.release_request
    FROM "<here>".distributed_locks AS l WHERE l.name = lock;
    UPDATE "<here>".distributed_locks AS l
    SET in_use = l.capacity, version = l.version % 9223372036854775807 + 1,
        holder = NULL, expires_at = '-infinity', labels = '{}', release_request = NULL
    WHERE l.name = lock;
END
$$;

-- Inserts missing names, free and without a token, in the order of names, and returns whether it has
-- inserted one. It waits for another insert of the same name for a quarter of a second at most, and then
-- fails (lock_not_available).
CREATE FUNCTION create_free(lock_names text[], permits integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT count(*) FROM "<here>".distributed_locks AS l WHERE l.name = ANY (lock_names)) < cardinality(lock_names) THEN
        PERFORM set_config('lock_timeout', '250ms', true);
        INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use, room_since)
        SELECT a.name, 0, 1, clock_timestamp(), '-infinity',
               nullif(a.permits, 0), CASE WHEN a.permits > 0 THEN 0 END, CASE WHEN a.permits > 0 THEN clock_timestamp() END
        FROM unnest(lock_names, permits) AS a (name, permits)
        WHERE NOT EXISTS (SELECT FROM "<here>".distributed_locks AS l WHERE l.name = a.name)
        ORDER BY a.name COLLATE "C"
        ON CONFLICT DO NOTHING;
        RETURN FOUND;
    END IF;
    RETURN false;
END
$$;

-- Grants all of the distinct names to the holder "who" for "us" microseconds, with one token, or
-- nothing: weights[i] of the permits[i] of each name. A lock with one holder has 0 permits, and the
-- weight 1, because a null in an array is text to a role whose array_nulls is off. The names are sorted by
-- their bytes, and my_ticket is the largest bigint without a ticket, and 0 to ignore the queue. If "notify",
-- it wakes the waiters for whom it finds room.
--
-- outcome:
--   granted  token, remaining microseconds
--   busy     name, token, holder and remaining microseconds of the grant in the way, of several the one
--            that ends last; of the holders of permits, the one that ends first. Without time, there is
--            room, but a row is locked, or "ahead" waiters have smaller tickets; "invalid" tickets
--   spent    this request won before, and its grant of some name has ended: try with a new one
--   kind     the name has another number of permits, "ahead"; 0: it is a lock with one holder
--   again    a name was pruned meanwhile: try again
--
-- acquire_permit.sql and acquire_all.sql grant what is free and has no queue. Here the first pass reads. The second one
-- locks the gates, and reads again. If expired permits are in the way, it frees them, and a third one follows.
--
-- Each name is looked up by itself, because a statement that joins the unnested names would be planned anew at
-- each call, which takes longer than all the lookups of one name.
--
-- A waiter is granted what it wants if there is room for it and for all who wait before it, whichever of
-- them comes first. One that is granted before these leaves the queue, where they keep their places. If the
-- head is silent, because what it waits for could have been granted for one and a half seconds, nothing is
-- kept for it and for the others before this one, whose tickets become invalid. That time begins anew
-- whenever the head finds the row locked, because a guarded transaction may outlive the release by any
-- time. A ticket for several names is skipped only if its client does not refresh it, because a name may be
-- free while its caller waits for another one.
--
-- Why it is safe, besides what is said above of permits:
-- * All or nothing. All rows are locked before they are judged, and changed in one transaction.
-- * No deadlock. Rows are locked and inserted in the order of names. One that is guarded, or has one
--   holder and is locked, is busy.
-- * Token order. The token is drawn while all rows are locked, and is above that of each.
-- * One row of a new name. The primary key decides; a stalled insert meets the row of the grant that
--   overtook it, and judges that. A name that was pruned meanwhile is tried again.
-- * No waiting. A lock with one holder whose row is locked is busy. A new name waits for another insert of
--   it for a quarter of a second at most. There is no advisory lock, since any role could hold one.
-- * Repeating it is safe. A request whose grant is live gets that grant again. After that grant has ended, a
--   delayed attempt can't win it back, not even while a minimum hold keeps the released row from expiring,
--   because without a holder there is no grant to recognize.
-- * A recognized grant is durable. With a synchronous standby, the commit of the first attempt may have been
--   cut off in its wait, so the grant may be on this server alone. The row changes again, and the commit of
--   that change follows the first one in the log. While the first attempt still waits for the standby, its
--   row is locked, which looks busy.
CREATE FUNCTION acquire_slots(
    lock_names text[], permits integer[], weights integer[], request_id uuid, who text, tags jsonb, us bigint, my_ticket bigint, notify boolean,
    OUT outcome text, OUT name text, OUT token bigint, OUT holder text, OUT remaining bigint, OUT ahead integer, OUT invalid boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$ -- see never()
#variable_conflict use_column
DECLARE
    n        CONSTANT integer := cardinality(lock_names);
    queued   CONSTANT boolean := my_ticket BETWEEN 1 AND 9223372036854775806;
    first    integer := 0; -- pass
    l        record;
    counted  integer := 0; -- rows
    ours     integer; -- rows with a grant of this request
    live     integer; -- of these, held
    room     integer; -- of a name
    silent   boolean; -- the head of its queue
    shared   boolean; -- the grant of a name, with others
    blocked  boolean; -- by something else than expired permits
    expired  bigint; -- permits of a name
    dead     text[]; -- names with expired permits in the way
    freed    text[] := '{}'; -- names that had them
    early    text[]; -- names at which others keep their places before this one
    skipped  text[]; -- names with a silent head
    opened   text[]; -- names at which others may have room from now on
    newest   bigint;
    began    timestamptz; -- the grant
    until    timestamptz;
    last_end timestamptz; -- of the grants in the way
    that     record;
BEGIN
    -- A missing number of permits would make a grant exclusive beside others.
    IF (n BETWEEN 1 AND 128 AND array_position(lock_names, NULL) IS NULL AND array_lower(lock_names, 1) = 1
        AND array_length(permits, 1) = n AND array_position(permits, NULL) IS NULL AND array_lower(permits, 1) = 1
        AND array_length(weights, 1) = n AND array_position(weights, NULL) IS NULL AND array_lower(weights, 1) = 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'pglock: acquire_slots: it takes 1 to 128 names, and as many permits and weights, without nulls'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF 0 < ALL (weights) IS NOT TRUE THEN -- a held lock has room for nothing
        RAISE EXCEPTION 'pglock: acquire: each weight must be positive' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF queued AND my_ticket > coalesce(pg_sequence_last_value(('<here>' || '.fencing_tokens')::regclass), 0) THEN
        -- It was not drawn here: it is forged, or a failover has lost it.
        outcome := 'busy'; name := lock_names[1]; token := 0; remaining := 0; ahead := 0; invalid := true;
        RETURN;
    ELSIF my_ticket = 9223372036854775807 THEN
        -- Without a ticket, with room and without a queue it likely succeeds: the checks run once, under the locks.
        -- Beside a queue they run before too, because the head would find the row locked, and miss its turn.
        FOR i IN 1..n LOOP
            PERFORM FROM "<here>".distributed_locks AS d
            WHERE d.name = lock_names[i] AND d.expires_at <= clock_timestamp()
              AND coalesce(d.capacity, 0) = permits[i] AND coalesce(d.capacity - d.in_use, 1) >= weights[i]
              AND NOT EXISTS (SELECT FROM "<here>".lock_waiters AS w
                              WHERE w.name = d.name AND w.ticket > d.ticket AND w.expires_at > clock_timestamp());
            counted := counted + FOUND::integer;
        END LOOP;
        first := (counted = n)::integer;
    END IF;
    token := 0; remaining := 0; ahead := 0; invalid := false;
    FOR pass IN first..2 LOOP
        IF pass = 1 THEN
            IF counted < n THEN
                PERFORM "<here>".create_free(lock_names, permits);
            END IF;
            FOR i IN 1..n LOOP
                PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR UPDATE SKIP LOCKED;
                CONTINUE WHEN FOUND;
                outcome := 'busy'; name := lock_names[i]; remaining := 0;
                SELECT max(d.token), max(d.holder) INTO token, holder FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i];
                token := coalesce(token, 0);
                IF permits[i] > 0 THEN -- in use for a moment, or guarded, perhaps for long
                    PERFORM set_config('lock_timeout', '250ms', true);
                    PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR NO KEY UPDATE;
                    IF NOT FOUND THEN
                        outcome := 'again';
                        RETURN;
                    END IF;
                    PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR UPDATE SKIP LOCKED;
                    CONTINUE WHEN FOUND;
                    PERFORM set_config('synchronous_commit', 'off', true); -- losing changes nothing
                END IF;
                IF ahead = 0 THEN -- the head keeps its place
                    UPDATE "<here>".lock_waiters AS w SET keep_until = clock_timestamp() + interval '1500 ms'
                    WHERE w.ctid = ANY (ARRAY(
                        SELECT v.ctid FROM "<here>".lock_waiters AS v
                        WHERE v.name = lock_names[i] AND v.ticket = my_ticket FOR UPDATE SKIP LOCKED));
                END IF;
                RETURN;
            END LOOP;
        END IF;

        outcome := 'busy'; name := lock_names[1]; token := 0; holder := NULL; remaining := 0; ahead := 0; invalid := false;
        counted := 0; ours := 0; live := 0; blocked := false; newest := 0; until := NULL; last_end := NULL;
        dead := '{}'; early := '{}'; skipped := '{}'; opened := freed;
        FOR i IN 1..n LOOP
            IF pass = 0 AND queued THEN -- the ticket is perhaps one of this client for another number of permits
                UPDATE "<here>".lock_waiters AS w SET weight = weights[i]
                WHERE w.ctid = ANY (ARRAY(
                    SELECT v.ctid FROM "<here>".lock_waiters AS v
                    WHERE v.name = lock_names[i] AND v.ticket = my_ticket AND v.weight <> weights[i]
                    FOR UPDATE SKIP LOCKED));
            END IF;
            SELECT d.name::text AS name, d.token, d.ticket, d.holder, d.expires_at, d.room_since, d.capacity,
                   d.capacity - d.in_use AS room, CASE WHEN d.capacity IS NULL THEN d.ended_at END AS ended_at,
                   p.token IS NOT NULL OR d.request = request_id AS ours, coalesce(p.token, d.token) AS our_token,
                   CASE WHEN p.holder IS NOT NULL THEN p.expires_at WHEN p.token IS NULL AND d.holder IS NOT NULL THEN d.expires_at END AS our_end,
                   q.* INTO l
            FROM "<here>".distributed_locks AS d
            LEFT JOIN "<here>".lock_permits AS p ON p.name = d.name AND p.request = request_id
            CROSS JOIN LATERAL (
                SELECT count(*) FILTER (WHERE w.lives) AS ahead, coalesce(sum(w.weight) FILTER (WHERE w.lives), 0) AS wanted,
                       (array_agg(w.weight ORDER BY w.ticket) FILTER (WHERE w.lives))[1] AS head,
                       max(w.keep_until) FILTER (WHERE w.lives) AS keep_until, max(w.expires_at) FILTER (WHERE NOT w.lives) AS died
                FROM (SELECT v.*, v.expires_at > clock_timestamp() AS lives FROM "<here>".lock_waiters AS v
                      WHERE v.name = d.name AND v.ticket > d.ticket AND v.ticket < my_ticket) AS w) AS q
            WHERE d.name = lock_names[i];
            CONTINUE WHEN NOT FOUND;
            counted := counted + 1;
            IF coalesce(l.capacity, 0) <> permits[i] THEN
                outcome := 'kind'; name := l.name; ahead := coalesce(l.capacity, 0);
                RETURN;
            ELSIF l.ours THEN
                ours := ours + 1;
                IF l.our_end > clock_timestamp() THEN
                    live := live + 1; token := l.our_token; until := least(until, l.our_end);
                END IF;
                CONTINUE;
            END IF;
            newest := greatest(newest, l.token);
            ahead := greatest(ahead, l.ahead);
            invalid := invalid OR queued AND l.ticket >= my_ticket;
            room := CASE WHEN l.expires_at > clock_timestamp() THEN 0 ELSE coalesce(l.room, 1) END;
            -- The head is silent if it could have been granted for that long: since there is room for
            -- it, and since the waiters before it were granted, left or died.
            silent := l.ahead > 0 AND room >= l.head AND l.keep_until <= clock_timestamp()
                AND greatest(l.room_since, l.ended_at, l.expires_at, l.died) <= clock_timestamp() - interval '1500 ms';
            IF silent THEN
                skipped := skipped || l.name;
            ELSIF l.ahead > 0 THEN
                early := early || l.name;
            END IF;
            IF silent OR l.holder IS NOT NULL THEN -- not for those who watch: the commit would wait under the lock of NOTIFY
                opened := opened || l.name;
            END IF;
            CONTINUE WHEN room >= weights[i] + CASE WHEN silent THEN 0 ELSE l.wanted END;

            SELECT l.token AS token, l.holder AS holder, l.expires_at AS expires_at INTO that;
            SELECT coalesce(sum(p.weight), 0) INTO expired FROM "<here>".lock_permits AS p WHERE p.name = l.name AND p.expires_at <= clock_timestamp();
            IF l.capacity > 0 AND l.expires_at <= clock_timestamp() THEN
                IF room + expired < weights[i] THEN -- otherwise the end of a guarded transaction makes the room
                    SELECT p.token, p.holder, p.expires_at INTO that FROM "<here>".lock_permits AS p
                    WHERE p.name = l.name AND p.expires_at > clock_timestamp() ORDER BY p.expires_at LIMIT 1;
                END IF;
            END IF;
            IF that.expires_at > clock_timestamp() AND (last_end IS NULL OR that.expires_at > last_end) THEN
                last_end := that.expires_at;
                name := l.name; token := that.token; holder := that.holder;
                remaining := greatest((extract(epoch FROM last_end - clock_timestamp()) * 1000000)::bigint, 1);
            ELSIF last_end IS NULL THEN
                name := l.name; token := l.token;
            END IF;
            IF expired > 0 THEN
                dead := dead || l.name;
            ELSE
                blocked := true;
            END IF;
        END LOOP;

        IF pass = 0 AND ours = 0 AND dead <> '{}' AND NOT invalid AND NOT blocked THEN -- are there any to free?
            PERFORM FROM "<here>".lock_permits AS p WHERE p.name = ANY (dead) AND p.expires_at <= clock_timestamp() LIMIT 1 FOR UPDATE SKIP LOCKED;
            blocked := NOT FOUND;
        END IF;
        IF ours > 0 AND live < n THEN
            outcome := 'spent';
            RETURN;
        ELSIF ours = 0 AND (invalid OR blocked OR pass = 2 AND dead <> '{}') THEN
            IF notify AND freed <> '{}' THEN
                PERFORM "<here>".wake_next(d.name, d.ticket, d.capacity - d.in_use)
                FROM "<here>".distributed_locks AS d WHERE d.name = ANY (freed);
            END IF;
            RETURN;
        END IF;
        CONTINUE WHEN pass = 0;
        PERFORM "<here>".commit_durably();
        IF ours > 0 THEN -- the commit of this change follows that of the grant in the log
            UPDATE "<here>".distributed_locks AS d SET version = d.version % 9223372036854775807 + 1 WHERE d.name = ANY (lock_names);
            EXIT;
        ELSIF dead <> '{}' THEN
            PERFORM "<here>".free_expired_permits(d) FROM unnest(dead) AS d;
            freed := dead;
            CONTINUE;
        END IF;

        token := greatest("<here>".next_fencing_token(), newest + 1);
        began := clock_timestamp();
        until := began + us * interval '1 microsecond';
        FOR i IN 1..n LOOP
            shared := weights[i] < permits[i];
            newest := acquire_slots.token;
            IF shared THEN
                INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels)
                VALUES (lock_names[i], newest, weights[i], 1, began, until, request_id, who, tags);
                newest := greatest("<here>".next_fencing_token(), newest + 1);
            END IF;
            UPDATE "<here>".distributed_locks AS d
            SET token = newest, version = d.version % 9223372036854775807 + 1,
                ticket = CASE
                    WHEN d.name = ANY (early) THEN d.ticket
                    WHEN queued THEN my_ticket
                    WHEN d.name = ANY (skipped) THEN coalesce((
                        SELECT min(w.ticket) FROM "<here>".lock_waiters AS w
                        WHERE w.name = d.name AND w.ticket > d.ticket AND w.expires_at > clock_timestamp()), d.ticket)
                    ELSE d.ticket END,
                in_use = CASE WHEN shared THEN d.in_use + weights[i] ELSE d.in_use END,
                room_since = CASE WHEN permits[i] > 0 AND d.name <> ALL (early) THEN clock_timestamp() ELSE d.room_since END,
                acquired_at = began, expires_at = CASE WHEN shared THEN '-infinity' ELSE until END, release_request = NULL,
                last_holder = coalesce(d.holder, d.last_holder), last_end = CASE WHEN d.holder IS NULL THEN d.last_end ELSE 'expired' END,
                ended_at = CASE WHEN d.holder IS NULL THEN d.ended_at ELSE nullif(d.expires_at, '-infinity') END,
                request = CASE WHEN shared THEN d.request ELSE request_id END,
                holder = CASE WHEN shared THEN NULL ELSE who END,
                labels = CASE WHEN shared THEN '{}' ELSE tags END
            WHERE d.name = lock_names[i];
        END LOOP;
        IF queued AND early <> '{}' THEN -- its ticket would stay valid
            DELETE FROM "<here>".lock_waiters AS w
            WHERE w.ctid = ANY (ARRAY(
                SELECT v.ctid FROM "<here>".lock_waiters AS v WHERE v.name = ANY (early) AND v.ticket = my_ticket FOR UPDATE SKIP LOCKED));
        END IF;
        IF notify AND opened <> '{}' THEN
            PERFORM "<here>".wake_next(d.name, d.ticket, d.capacity - d.in_use)
            FROM "<here>".distributed_locks AS d WHERE d.name = ANY (opened) AND d.capacity > d.in_use AND d.holder IS NULL;
        END IF;
        EXIT;
    END LOOP;
    outcome := 'granted'; name := NULL; holder := NULL; ahead := 0; invalid := false;
    remaining := (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint;
END
$$;

-- Ends a grant of a lock of any kind, "how" is released or revoked. Notifies the waiters for whom there is
-- room if "notify" is true. Returns no row if the grant is not current, or was released before: see
-- release.sql and revoke_grant.sql. "why" is the reason of a revocation. It waits for the row lock of
-- another transaction for a short time only.
CREATE FUNCTION release_permits(lock text, grant_token bigint, notify boolean, how text DEFAULT 'released', why text DEFAULT NULL) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$ -- see never()
#variable_conflict use_column
DECLARE
    gate   record;
    mine   record;
    weight integer := 0; -- of the grant, in in_use
    whole  boolean; -- the grant is exclusive
    room   integer;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    IF how = 'released' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSE
        PERFORM "<here>".commit_durably();
    END IF;
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = release_permits.lock FOR NO KEY UPDATE;
    whole := coalesce(gate.token = grant_token AND gate.holder IS NOT NULL, false);
    IF whole THEN
        mine := gate;
    ELSE
        WITH free AS MATERIALIZED (
            SELECT p.ctid FROM "<here>".lock_permits AS p
            WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM "<here>".lock_permits AS p USING free AS f WHERE p.ctid = f.ctid
        RETURNING p.holder, p.request, p.weight INTO mine;
        IF FOUND THEN
            weight := mine.weight;
        ELSE
            SELECT p.holder, p.request INTO mine FROM "<here>".lock_permits AS p
            WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL;
            IF NOT FOUND THEN
                IF how = 'revoked' AND (gate.revoked_token = grant_token OR gate.revoked_permits ? grant_token::text) THEN
                    RETURN NEXT false; -- a repetition
                END IF;
                RETURN;
            END IF;
            -- A guarded transaction uses it until its end. Or a renewal was in progress, for which
            -- this waits: then it is free below.
            UPDATE "<here>".lock_permits AS p
            SET holder = NULL, expires_at = '-infinity', version = p.version % 9223372036854775807 + 1
            WHERE p.name = release_permits.lock AND p.token = grant_token;
        END IF;
    END IF;
    UPDATE "<here>".distributed_locks AS l
    SET in_use = l.in_use - least(l.in_use, weight), version = l.version % 9223372036854775807 + 1,
        holder = NULL, expires_at = '-infinity', request = mine.request,
        last_holder = mine.holder, last_end = how, ended_at = clock_timestamp(),
        revoked_token = CASE WHEN how = 'revoked' THEN grant_token ELSE l.revoked_token END,
        revoked_reason = CASE WHEN how = 'revoked' THEN why ELSE l.revoked_reason END,
        -- Each of the holders is to learn why. Beyond that size it begins anew, because a row that others
        -- have written may be anything.
        revoked_permits = CASE
            WHEN how <> 'revoked' OR l.capacity IS NULL THEN l.revoked_permits
            WHEN pg_column_size(l.revoked_permits) < 16384 THEN l.revoked_permits || jsonb_build_object(grant_token, coalesce(why, ''))
            ELSE jsonb_build_object(grant_token, coalesce(why, '')) END,
        room_since = CASE WHEN l.capacity > 0 AND (whole OR l.in_use >= l.capacity) THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = release_permits.lock
    RETURNING l.capacity - l.in_use INTO room;
    RETURN NEXT "<here>".wake_for_room(release_permits.lock, gate.ticket, weight, room, notify);
END
$$;

-- Waits until no guarded transaction uses a revoked grant, for a second at most (lock_not_available), and
-- then notifies the waiters for whom there is room, if "notify". Returns at most one row: whether a waiter
-- was notified. If the next holder has the lock, there is no row: it was granted after the last guard.
--
-- * FOR UPDATE conflicts with the FOR KEY SHARE of a guard.
-- * No guard passes after this commit, even if its snapshot is older than the revocation. Such a guard
--   locks the row version that it sees, and the server compares that lock with the later changes of the
--   row. A revocation changes no key column, which FOR KEY SHARE does not conflict with. So the row
--   changes once more under FOR UPDATE: then the guard fails, or reads the newest version.
-- * It locks a permit before the gate. That can't deadlock: nobody who holds the gate waits for a permit
--   that has no holder. A permit without a row was free at once.
CREATE FUNCTION await_guards(lock text, grant_token bigint, notify boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    PERFORM FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.token = grant_token AND p.holder IS NULL FOR UPDATE;
    IF FOUND THEN
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
        PERFORM "<here>".free_expired_permits(lock);
    ELSE
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = lock AND l.token = grant_token AND l.revoked_token = grant_token FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE "<here>".distributed_locks AS l SET version = l.version % 9223372036854775807 + 1 WHERE l.name = lock;
    END IF;
    RETURN QUERY SELECT notify AND "<here>".wake_next(lock, l.ticket, l.capacity - l.in_use) FROM "<here>".distributed_locks AS l WHERE l.name = lock;
END
$$;

-- Gives a part of a grant's permits back, so that it keeps "keep" of them, with the same token, and
-- notifies the waiters for whom there is room, if "notify". A writer that keeps one is a reader. There is
-- no time without a grant. A guarded transaction of an exclusive grant keeps all others out until it ends:
-- it has locked the gate. One of another grant is waited for.
--
-- Returns one row if the grant is held: whether a waiter was notified. No row: it is not current.
-- Repeating it is safe, and it never adds permits.
CREATE FUNCTION keep_permits(lock text, grant_token bigint, keep integer, notify boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    gate record;
    had  integer; -- permits
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = keep_permits.lock FOR NO KEY UPDATE;
    IF gate.token = grant_token AND gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN
        had := gate.capacity;
        IF keep < had THEN
            PERFORM "<here>".share_grant(keep_permits.lock);
        END IF;
    ELSE
        SELECT p.weight INTO had FROM "<here>".lock_permits AS p
        WHERE p.name = keep_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp() FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM "<here>".commit_durably();
    -- A repetition changes the gate too: its commit follows that of the first one in the log.
    UPDATE "<here>".distributed_locks AS l SET version = l.version % 9223372036854775807 + 1 WHERE l.name = keep_permits.lock;
    IF keep < had THEN
        UPDATE "<here>".lock_permits AS p SET weight = keep, version = p.version % 9223372036854775807 + 1
        WHERE p.name = keep_permits.lock AND p.token = grant_token;
        PERFORM "<here>".add_room(keep_permits.lock, had - keep);
    END IF;
    RETURN NEXT keep < had AND notify AND (
        SELECT "<here>".wake_next(l.name, l.ticket, l.capacity - l.in_use) FROM "<here>".distributed_locks AS l WHERE l.name = keep_permits.lock);
END
$$;

-- Turns the grant of a reader into that of a writer with a new token, if it is the only grant. Others
-- that wait can't be granted before this reader ends, so none of them loses its turn.
--
-- outcome:
--   granted  token, remaining microseconds
--   busy     token, holder and remaining microseconds of another reader, or of this one, if its
--            guarded transaction is in progress
--   spent    the reader's grant is not current
CREATE FUNCTION upgrade_permits(
    lock text, grant_token bigint, request_id uuid, who text, tags jsonb, us bigint,
    OUT outcome text, OUT token bigint, OUT holder text, OUT remaining bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    gate  record;
    mine  record;
    until timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = upgrade_permits.lock FOR NO KEY UPDATE;
    SELECT * INTO mine FROM "<here>".lock_permits AS p
    WHERE p.name = upgrade_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp();
    IF gate.request = request_id AND gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN -- a repetition
        PERFORM "<here>".commit_durably();
        UPDATE "<here>".distributed_locks AS l SET version = l.version % 9223372036854775807 + 1 WHERE l.name = upgrade_permits.lock;
        outcome := 'granted'; token := gate.token; until := gate.expires_at;
    ELSIF mine.token IS NULL THEN
        outcome := 'spent'; token := coalesce(gate.token, 0); remaining := 0;
        RETURN;
    ELSE
        PERFORM "<here>".free_expired_permits(upgrade_permits.lock);
        -- A guard of an earlier exclusive grant is not waited for: see acquire_slots.
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = upgrade_permits.lock AND l.in_use = mine.weight FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- This waits for a renewal in progress. Afterwards only a guard can hold the row.
            PERFORM FROM "<here>".lock_permits AS p WHERE p.name = upgrade_permits.lock AND p.token = grant_token FOR NO KEY UPDATE;
            DELETE FROM "<here>".lock_permits AS p
            WHERE p.ctid = (SELECT q.ctid FROM "<here>".lock_permits AS q WHERE q.name = upgrade_permits.lock AND q.token = grant_token FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                UPDATE "<here>".distributed_locks AS l SET in_use = 0, last_holder = mine.holder, last_end = 'released', ended_at = clock_timestamp()
                WHERE l.name = upgrade_permits.lock;
                SELECT g.outcome, g.token, g.holder, g.remaining INTO outcome, token, holder, remaining
                FROM "<here>".acquire_slots(ARRAY[upgrade_permits.lock], ARRAY[gate.capacity::integer], ARRAY[gate.capacity::integer],
                    request_id, who, tags, us, 0, false) AS g;
                RETURN;
            END IF;
        END IF;
        outcome := 'busy';
        SELECT p.token, p.holder, p.expires_at INTO token, holder, until FROM "<here>".lock_permits AS p
        WHERE p.name = upgrade_permits.lock AND p.expires_at > clock_timestamp() ORDER BY p.token = grant_token, p.expires_at LIMIT 1;
    END IF;
    remaining := greatest((extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint, 1);
END
$$;

-- Sets the number of permits, and creates the name if need be. Returns the number before; 0 if the
-- name is new; -1 if it has one holder, and -2 if it is a readers-writer lock: nothing was changed.
--
-- A holder of all permits keeps as many as it has. If there are more now, it shares the lock.
CREATE FUNCTION resize_permits(lock text, permits integer, notify boolean) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gate record;
    need integer;
    used integer;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    IF (permits BETWEEN 1 AND 1073741823) IS NOT TRUE THEN -- or others would get the permits as those of another kind
        RAISE EXCEPTION 'pglock: resize "%": the number of permits must be 1 to 1073741823', lock USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF "<here>".create_free(ARRAY[lock], ARRAY[permits]) THEN
        RETURN 0;
    END IF;
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
    IF gate.capacity IS NULL THEN
        RETURN -1;
    ELSIF gate.capacity = 1073741824 THEN
        RETURN -2;
    END IF;
    used := gate.in_use;
    IF permits <> gate.capacity AND gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN
        PERFORM "<here>".share_grant(lock);
        PERFORM "<here>".commit_durably();
        used := gate.capacity;
    END IF;
    need := "<here>".head_weight(lock, gate.ticket);
    UPDATE "<here>".distributed_locks AS l
    SET capacity = permits, version = l.version % 9223372036854775807 + 1,
        room_since = CASE WHEN permits - used >= need AND gate.capacity - used < need THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = lock;
    IF notify THEN
        -- All waiters fail now, unless the number is the same.
        PERFORM "<here>".wake_next(lock, gate.ticket, CASE WHEN permits <> gate.capacity THEN 2147483647 END);
    END IF;
    RETURN gate.capacity;
END
$$;

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

-- Puts the schema into the new functions: their statements name it as "<here>", their string literals as
-- '<here>', and the settings that they use as <schema>. Then it revokes the default privileges of others.
-- Grants to PUBLIC come after it.
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

-- grant_user() grants these rights. A role with USAGE on the schema can't build tables of its own on the
-- types, which would block migrating down.
REVOKE EXECUTE ON FUNCTION highest_token(), evidence_bound(), lift_sequence(text), lift_fencing_tokens(text), raise_pruned(bigint), token_follows(bigint),
    revoke_defaults(regnamespace), pin_functions(text) FROM PUBLIC;
REVOKE USAGE ON DOMAIN lock_name, wake_channel, finite_time, lease_end, permit_count, permit_sum, token_value FROM PUBLIC;
REVOKE USAGE ON TYPE distributed_locks, lock_waiters, lock_permits, fencing_epoch, locks_held, locks_waiting FROM PUBLIC;

SELECT pin_functions();
