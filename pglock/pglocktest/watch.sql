-- Triggers that count the rows that are written without a guard. Guards set a limit of idle time for their transaction,
-- and a setting of a session or a transaction shows as one, unless a savepoint was rolled back. A sequence counts,
-- because its values stay when the transaction is rolled back after the trigger.
CREATE OR REPLACE FUNCTION pglock.note_write() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT s.source FROM pg_settings AS s WHERE s.name = 'idle_in_transaction_session_timeout') <> 'session' THEN
        PERFORM nextval(TG_ARGV[0]::regclass);
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION pglock.watch_writes(watched text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    counter text := format('pglock.unguarded_%s', watched::regclass::oid);
BEGIN
    PERFORM pglock.unwatch_writes(watched); -- of a test that was killed
    EXECUTE 'CREATE SEQUENCE ' || counter;
    EXECUTE format('CREATE CONSTRAINT TRIGGER pglocktest_watch AFTER INSERT OR UPDATE OR DELETE ON %s '
                   'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pglock.note_write(%L)', watched::regclass, counter);
END
$$;
CREATE OR REPLACE FUNCTION pglock.unwatch_writes(watched text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    counter text := format('pglock.unguarded_%s', watched::regclass::oid);
    rows    bigint;
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS pglocktest_watch ON %s', watched::regclass);
    IF to_regclass(counter) IS NOT NULL THEN
        EXECUTE format('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %s', counter) INTO rows;
        EXECUTE 'DROP SEQUENCE ' || counter;
    END IF;
    RETURN coalesce(rows, 0);
END
$$;
