-- The lock table, its queue and its tokens.
--
-- Run with search_path set to the schema that shall hold them; names that must
-- survive another search_path later are qualified with current_schema() here.
-- All of this file is one transaction.

-- One sequence for all names: rows of idle names can be pruned and still no
-- token ever comes back. CACHE must stay 1: a cached range would be handed out
-- late by one session, below tokens that another session has drawn since.
CREATE SEQUENCE fencing_tokens AS bigint CACHE 1;

-- Checked when a name comes in. A CHECK on the tables would be evaluated, and parsed, at
-- each change of a row, which never changes the name.
CREATE DOMAIN lock_name AS text CHECK (octet_length(VALUE) BETWEEN 1 AND 512);

-- A free lock keeps its row: holder is null, expires_at is -infinity, and
-- token and version tell its history.
--
-- Only name is indexed, so that every change of a row is a heap-only update. A takeover
-- changes no key column, then, and would pass a guard's FOR KEY SHARE: whoever changes
-- token locks the row FOR UPDATE before. Renewals and releases do not, and pass.
CREATE TABLE distributed_locks (
    name        lock_name   PRIMARY KEY,
    token       bigint      NOT NULL,
    version     bigint      NOT NULL,
    ticket      bigint      NOT NULL DEFAULT 0,
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    released_at timestamptz,
    request     uuid,
    holder      text,
    labels      jsonb       NOT NULL DEFAULT '{}'
) WITH (
    -- Half of each page is room for the next versions of its rows, and vacuum early:
    -- the table is small and hot.
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE distributed_locks IS 'pglock: one row a lock name, held or free';
COMMENT ON COLUMN distributed_locks.token IS 'fencing token of the last grant; grows with every grant of any name';
COMMENT ON COLUMN distributed_locks.version IS 'grows by one on every change of the row';
COMMENT ON COLUMN distributed_locks.ticket IS 'of the last waiter that was granted the lock: tickets up to it are used up or were passed over';
COMMENT ON COLUMN distributed_locks.expires_at IS 'by the clock of the server; -infinity while free';
COMMENT ON COLUMN distributed_locks.released_at IS 'null while held, or if it was never released';
COMMENT ON COLUMN distributed_locks.request IS 'the attempt that won, so that a repeated request is recognised';

-- The queue: one row for a process and name, not for a goroutine. First come first
-- served by ticket; a ticket counts until it expires, or the lock's row has one as high.
-- A client that waits again changes its row, and no index. After a crash of the server
-- clients queue anew: that the queue is lost costs order, never exclusion.
CREATE UNLOGGED TABLE lock_waiters (
    name       lock_name   NOT NULL,
    client     text        NOT NULL,
    ticket     bigint      NOT NULL DEFAULT nextval('fencing_tokens'),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (name, client)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE lock_waiters IS 'pglock: who waits for which name, first come first served by ticket';
COMMENT ON COLUMN lock_waiters.client IS 'the channel on which this client is notified';

-- The cluster that the tokens were drawn in: see lift_fencing_tokens().
CREATE TABLE fencing_epoch (
    system bigint
);
COMMENT ON TABLE fencing_epoch IS 'pglock: the system identifier of the cluster whose sequence is above all tokens';

DO $install$
DECLARE
    here     text := quote_ident(current_schema());
    -- What the timeline of the write-ahead log adds. It grows at each promotion,
    -- so a standby that was promoted without the last grants still hands out
    -- larger tokens than the old primary did. 2^40 grants fit in a timeline.
    -- The name of a WAL file begins with the timeline in eight hex digits.
    timeline text := $$(('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))
        ::pg_catalog.bit(32)::pg_catalog.int8 - 1) * 1099511627776::pg_catalog.int8$$;
    system   text := '(SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c)';
BEGIN
    BEGIN
        PERFORM pg_walfile_name(pg_current_wal_lsn());
    EXCEPTION WHEN undefined_function OR feature_not_supported OR insufficient_privilege THEN
        timeline := '0'; -- then tokens do not outlive a failover that loses commits
    END;

    -- LANGUAGE sql and no SET clause, so that the planner inlines it.
    EXECUTE format(
        'CREATE FUNCTION next_fencing_token() RETURNS bigint LANGUAGE sql VOLATILE AS %L',
        format('SELECT pg_catalog.nextval(%L::pg_catalog.regclass) + %s',
               here || '.fencing_tokens', timeline));

    -- pg_upgrade and a restored dump begin with timeline 1 again. The rows still
    -- tell how far the tokens had come (pruning keeps the highest), so lift the
    -- sequence above them. A client calls this once for each connection. To find the
    -- highest token reads the whole table, so it is done where the cluster is another
    -- one than the last time; where nothing tells the cluster, it is done each time.
    -- The lock keeps a slow caller from setting the sequence back.
    BEGIN
        PERFORM system_identifier FROM pg_control_system();
    EXCEPTION WHEN undefined_function OR undefined_table OR feature_not_supported OR insufficient_privilege THEN
        system := 'NULL::pg_catalog.int8';
    END;
    EXECUTE format('INSERT INTO fencing_epoch SELECT %s', system);
    EXECUTE format(
        'CREATE FUNCTION lift_fencing_tokens() RETURNS boolean LANGUAGE plpgsql VOLATILE
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        format($lift$
DECLARE
    this    int8 := %4$s;
    highest int8;
BEGIN
    IF this = (SELECT e.system FROM %1$s.fencing_epoch AS e) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(%1$s.prune_gate() + 1);
    SELECT max(l.token) - %2$s INTO highest FROM %1$s.distributed_locks AS l;
    UPDATE %1$s.fencing_epoch SET system = this WHERE system IS DISTINCT FROM this;
    IF highest IS NULL OR highest <= (SELECT last_value - (NOT is_called)::int FROM %1$s.fencing_tokens) THEN
        RETURN false;
    END IF;
    PERFORM setval(%3$L, highest);
    RETURN true;
END
$lift$, here, timeline, here || '.fencing_tokens', system));

    -- The advisory lock that keeps pruning and first grants apart: whoever inserts
    -- a row holds it shared from before the token is drawn, pruning holds it alone.
    -- Otherwise a stalled insert could win a name with an old token after the row
    -- that carried newer ones was pruned. 'pglk' in the upper half, an OID below.
    EXECUTE format(
        'CREATE FUNCTION prune_gate() RETURNS bigint LANGUAGE sql STABLE AS %L',
        format('SELECT 8099561661666426880 + 2 * %L::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int8',
               here || '.distributed_locks'));

    -- Notify whoever waits first for a name, with a ticket above the one that was used
    -- last. A function, since each of its statements has a snapshot of its own: it sees the
    -- tickets that were drawn while the release waited to be carried out, and leaves less
    -- room for one that nobody sees. Where nobody waits nothing is notified: a NOTIFY takes
    -- a lock of the whole cluster until the commit is done.
    EXECUTE format(
        'CREATE FUNCTION wake_next(lock_name text, used_up bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS %L',
        format($wake$
DECLARE
    next_client text;
BEGIN
    SELECT w.client INTO next_client
    FROM %1$s.lock_waiters AS w
    WHERE w.name = lock_name AND w.ticket > used_up AND w.expires_at > pg_catalog.clock_timestamp()
    ORDER BY w.ticket
    LIMIT 1;
    IF next_client IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_catalog.pg_notify(next_client, lock_name);
    RETURN true;
END
$wake$, here));

    -- The same for many names. Returns those for which somebody was notified.
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

COMMENT ON FUNCTION wake_next(text, bigint) IS 'pglock: notify whoever waits first for a lock';
COMMENT ON FUNCTION wake_each(text[], bigint[]) IS 'pglock: notify whoever waits first for each of the locks';

COMMENT ON FUNCTION next_fencing_token() IS 'pglock: a token above every token drawn before, also after a failover';
COMMENT ON FUNCTION prune_gate() IS 'pglock: key of the advisory lock between pruning and first grants';
COMMENT ON FUNCTION lift_fencing_tokens() IS 'pglock: put the sequence above the tokens in use, after pg_upgrade or a restore; true if it had to';

-- The key of an advisory lock by name, as advisory.NewKey in Go has it: the first 64 bits
-- of the SHA-256 of a tag, the namespace and the name, each with its length in front. Frozen.
-- It fails where a NULL would make pg_advisory_lock do nothing.
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
COMMENT ON FUNCTION advisory_key(text, text) IS 'pglock: the key under which pglock locks a name with pg_advisory_xact_lock';

-- What clients compare with the version that they were made for.
CREATE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_schema_version() IS 'pglock: the number of the last migration';
