-- The lock table, its queue and its tokens.
--
-- Run with search_path set to the schema that shall hold them; names that must
-- survive another search_path later are qualified with current_schema() here.
-- All of this file is one transaction.

-- One sequence for all names: rows of idle names can be pruned and still no
-- token ever comes back. CACHE must stay 1: a cached range would be handed out
-- late by one session, below tokens that another session has drawn since.
CREATE SEQUENCE fencing_tokens AS bigint CACHE 1;

-- A free lock keeps its row: holder is null, expires_at is -infinity, and
-- token and version tell its history.
CREATE TABLE distributed_locks (
    name        text        PRIMARY KEY
                            CHECK (octet_length(name) BETWEEN 1 AND 512),
    -- The unique index makes token a key column: a takeover, which changes it,
    -- waits for a guard's FOR KEY SHARE; a renewal, which does not, passes.
    token       bigint      NOT NULL UNIQUE CHECK (token > 0),
    version     bigint      NOT NULL,
    holder      text,
    request     uuid,
    labels      jsonb       NOT NULL DEFAULT '{}',
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    CHECK (holder IS NOT NULL OR expires_at = '-infinity')
) WITH (
    -- Room in each page for the next version of a row, so that renewals and
    -- releases are heap-only updates, and vacuum early: the table is small and hot.
    fillfactor = 70,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE distributed_locks IS 'pglock: one row a lock name, held or free';
COMMENT ON COLUMN distributed_locks.token IS 'fencing token of the last grant; grows with every grant of any name';
COMMENT ON COLUMN distributed_locks.version IS 'grows by one on every change of the row';
COMMENT ON COLUMN distributed_locks.request IS 'the attempt that won, so that a repeated request is recognised';
COMMENT ON COLUMN distributed_locks.expires_at IS 'by the clock of the server; -infinity while free';

-- The queue: one row for a process and name, not for a goroutine.
CREATE TABLE lock_waiters (
    ticket     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 512),
    client     text        NOT NULL,
    expires_at timestamptz NOT NULL,
    UNIQUE (name, client)
) WITH (
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE lock_waiters IS 'pglock: who waits for which name, first come first served by ticket';
COMMENT ON COLUMN lock_waiters.client IS 'the channel on which this client is notified';

DO $install$
DECLARE
    here     text := quote_ident(current_schema());
    -- What the timeline of the write-ahead log adds. It grows at each promotion,
    -- so a standby that was promoted without the last grants still hands out
    -- larger tokens than the old primary did. 2^40 grants fit in a timeline.
    -- The name of a WAL file begins with the timeline in eight hex digits.
    timeline text := $$(('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))
        ::pg_catalog.bit(32)::pg_catalog.int8 - 1) * 1099511627776::pg_catalog.int8$$;
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
    -- sequence above them. A client calls this once for each connection; as a rule
    -- it only reads. The lock keeps a slow caller from setting the sequence back.
    EXECUTE format(
        'CREATE FUNCTION lift_fencing_tokens() RETURNS boolean LANGUAGE plpgsql VOLATILE
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        format($lift$
DECLARE
    highest bigint;
BEGIN
    SELECT max(token) - %2$s INTO highest FROM %1$s.distributed_locks;
    IF highest IS NULL OR highest <= (SELECT last_value - (NOT is_called)::int FROM %1$s.fencing_tokens) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(%1$s.prune_gate() + 1);
    SELECT max(token) - %2$s INTO highest FROM %1$s.distributed_locks;
    IF highest <= (SELECT last_value - (NOT is_called)::int FROM %1$s.fencing_tokens) THEN
        RETURN false;
    END IF;
    PERFORM setval(%3$L, highest);
    RETURN true;
END
$lift$, here, timeline, here || '.fencing_tokens'));

    -- The advisory lock that keeps pruning and first grants apart: whoever inserts
    -- a row holds it shared from before the token is drawn, pruning holds it alone.
    -- Otherwise a stalled insert could win a name with an old token after the row
    -- that carried newer ones was pruned. 'pglk' in the upper half, an OID below.
    EXECUTE format(
        'CREATE FUNCTION prune_gate() RETURNS bigint LANGUAGE sql STABLE AS %L',
        format('SELECT 8099561661666426880 + 2 * %L::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int8',
               here || '.distributed_locks'));
END
$install$;

COMMENT ON FUNCTION next_fencing_token() IS 'pglock: a token above every token drawn before, also after a failover';
COMMENT ON FUNCTION prune_gate() IS 'pglock: key of the advisory lock between pruning and first grants';
COMMENT ON FUNCTION lift_fencing_tokens() IS 'pglock: put the sequence above the tokens in use, after pg_upgrade or a restore; true if it had to';

-- What clients compare with the version that they were made for.
CREATE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
COMMENT ON FUNCTION pglock_schema_version() IS 'pglock: the number of the last migration';
