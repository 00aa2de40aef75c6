-- Fencing: functions that check and bind a grant, high-water marks, rights.
--
-- Run with search_path set to the schema that holds the lock tables. The functions are
-- written with bare names as a rule; the end of this file pins them to that schema.
-- All of this file is one transaction.
--
-- SQLSTATEs of our own, class PG, which neither PostgreSQL nor the SQL standard uses:
--   PGL01  stale: the grant is not the current one, or a newer one has written
--   PGL02  unfenced: a write to a strictly protected table without a bound grant
--   PGL03  other lock: no grant is bound of the lock that the row belongs to
--   PGL04  no such table, or nothing that can be protected
--   PGL05  a column that does not fit
--   PGL06  protected already, with other options
--   PGL07  an option that makes no sense
--   PGL08  not a fence: a name or token that no grant can have
-- The DETAIL of PGL01 and PGL03 is JSON, for programs.
--
-- What a transaction has bound is kept in settings that end with it. Their names carry
-- this schema's (the end of this file puts it in), so that a grant of another is none here:
--   pglock.grants_<schema>         JSON: name of the lock -> token; with a space behind it
--                                  where this transaction has locked the rows of them all
--   pglock.token_<schema>          the token that was bound last
--   pglock.seen_<schema>_<number>  the grants that were verified for that protected table
-- Anybody can set them. So each statement on a protected table verifies them against
-- the lock table: what nobody was granted is refused, wherever it came from.

-- The highest token that each resource has seen: for what has no token column, and for
-- tables protected as a whole.
CREATE TABLE fencing_high_water (
    resource text   PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 512),
    token    bigint NOT NULL CHECK (token > 0)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05
);
COMMENT ON TABLE fencing_high_water IS 'pglock: the highest token that a resource has seen; lower ones are refused';

CREATE FUNCTION raise_stale(resource text, token bigint, newest bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'PGL01',
        MESSAGE = CASE
            WHEN newest > 0 AND newest <> token THEN format('pglock: stale grant: %s of "%s", the newest is %s', token, resource, newest)
            WHEN newest = token THEN format('pglock: stale grant: %s of "%s" has ended', token, resource)
            ELSE format('pglock: stale grant: "%s" has no grant %s', resource, token) END,
        DETAIL = jsonb_build_object('resource', resource, 'token', token, 'current', newest)::text,
        HINT = 'Roll back. Somebody else may hold the lock.';
END
$$;

CREATE FUNCTION require_fence(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (octet_length(lock_name) BETWEEN 1 AND 512 AND grant_token > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL08',
            MESSAGE = format('pglock: no grant is %s of %s: tokens begin at 1, and names have 1 to 512 bytes',
                             coalesce(grant_token::text, 'NULL'), coalesce(quote_literal(lock_name), 'NULL'));
    END IF;
END
$$;

-- The shorter of so many milliseconds and the limit on idling that is set, 0 for none. It is
-- inlined where it is called, also in bind, so everything in it is qualified.
CREATE FUNCTION idle_limit(ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT least(ms, 2147483647, CASE WHEN pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.<>) '0' THEN
        (pg_catalog.date_part('epoch', pg_catalog.current_setting('idle_in_transaction_session_timeout')::pg_catalog.interval)
            OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8 END)::pg_catalog.text
$$;

-- Locks the grant until the end of the transaction, if it is current.
--
-- FOR KEY SHARE: a takeover locks the row FOR UPDATE, so it waits for the end of this
-- transaction, while a renewal, which does not, passes. The clock is
-- read after the lock is held, because a wait for it may have outlasted the lease.
--
-- A holder paused inside its transaction would keep everybody out for as long as it
-- sleeps. So the server ends this transaction once it has idled for what remains of the
-- lease; a shorter limit of the caller's own is kept.
--
-- SECURITY DEFINER: writers need no right on the lock table, not even to lock its rows.
CREATE FUNCTION check_fence(lock_name text, grant_token bigint,
                            OUT is_current boolean, OUT newest bigint, OUT isolation text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    ends timestamptz;
    ms   bigint;
BEGIN
    SELECT l.expires_at INTO ends
    FROM distributed_locks AS l
    WHERE l.name = lock_name AND l.token = grant_token AND l.expires_at > clock_timestamp()
    FOR KEY SHARE;
    ms := ceil(extract(epoch FROM ends - clock_timestamp()) * 1000);
    is_current := coalesce(ms > 0, false);
    isolation := current_setting('transaction_isolation');
    IF is_current THEN
        PERFORM set_config('idle_in_transaction_session_timeout', idle_limit(ms), true);
        newest := grant_token;
    ELSE
        PERFORM require_fence(lock_name, grant_token);
        newest := coalesce((SELECT l.token FROM distributed_locks AS l WHERE l.name = lock_name), 0);
    END IF;
END
$$;
COMMENT ON FUNCTION check_fence(text, bigint) IS 'pglock: hold a grant until the end of the transaction, if it is current; tells whether it is';

-- check_fence that fails instead of answering: it stops whatever follows in the
-- transaction, or in the same pipeline.
CREATE FUNCTION guard(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    c record;
BEGIN
    SELECT * INTO c FROM check_fence(lock_name, grant_token);
    IF c.is_current THEN
        RETURN;
    END IF;
    IF c.isolation <> 'read committed' AND c.newest <= grant_token THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('pglock: the snapshot may be too old to tell whether %s of "%s" is the current grant', grant_token, lock_name),
            HINT = 'Make it the first statement of the transaction, or use READ COMMITTED.';
    END IF;
    PERFORM raise_stale(lock_name, grant_token, c.newest);
END
$$;
COMMENT ON FUNCTION guard(text, bigint) IS 'pglock: hold a grant until the end of the transaction, or fail with PGL01';

-- guard, and lets the transaction write to protected tables as that grant. Most
-- transactions of a holder begin with it, so it does what check_fence does by itself, and
-- has no search_path of its own: that would be a tenth of its price. Instead everything
-- in it is qualified; the end of this file puts the schema in.
CREATE FUNCTION bind(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    ends   pg_catalog.timestamptz;
    ms     pg_catalog.int8;
    before pg_catalog.text := pg_catalog.current_setting('pglock.grants_<schema>', true);
    after  pg_catalog.text;
    idle   pg_catalog.text;
BEGIN
    SELECT l.expires_at INTO ends
    FROM "<here>".distributed_locks AS l
    WHERE l.name OPERATOR(pg_catalog.=) lock_name AND l.token OPERATOR(pg_catalog.=) grant_token
      AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
    FOR KEY SHARE;
    -- Not before the lock is held.
    ms := pg_catalog.ceil(pg_catalog.date_part('epoch', ends OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000);
    IF (ms OPERATOR(pg_catalog.>) 0) IS NOT TRUE THEN
        PERFORM "<here>".guard(lock_name, grant_token); -- knows why not, and bounds the idling otherwise
        idle := pg_catalog.current_setting('idle_in_transaction_session_timeout');
    ELSE
        idle := "<here>".idle_limit(ms);
    END IF;
    after := pg_catalog.jsonb_build_object(lock_name, grant_token);
    IF before OPERATOR(pg_catalog.<>) '' THEN
        -- Others that are bound and not locked, because somebody set them, stay so.
        after := (before::pg_catalog.jsonb OPERATOR(pg_catalog.||) after::pg_catalog.jsonb)::pg_catalog.text
                 OPERATOR(pg_catalog.||) CASE WHEN pg_catalog.right(before, 1) OPERATOR(pg_catalog.=) ' ' THEN ' ' ELSE '' END;
    ELSE
        after := after OPERATOR(pg_catalog.||) ' ';
    END IF;
    -- An assignment costs less than a PERFORM.
    after := pg_catalog.set_config('idle_in_transaction_session_timeout', idle, true)
             OPERATOR(pg_catalog.||) pg_catalog.set_config('pglock.grants_<schema>', after, true)
             OPERATOR(pg_catalog.||) pg_catalog.set_config('pglock.token_<schema>', grant_token::pg_catalog.text, true);
END
$$;
COMMENT ON FUNCTION bind(text, bigint) IS 'pglock: guard, and write to protected tables as that grant until the end of the transaction';

-- Raises a resource's mark, in one statement where it grows. The same token may come
-- again, and keeps later ones out until the end of the transaction.
--
-- Only who comes with the mark's own token locks it for sharing. Others take it for
-- themselves at once, so that two can't wait for each other.
CREATE FUNCTION advance(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    mark bigint;
BEGIN
    PERFORM require_fence(advance.resource, advance.token);
    PERFORM FROM fencing_high_water AS h
    WHERE h.resource = advance.resource AND h.token = advance.token
    FOR SHARE;
    IF FOUND THEN
        RETURN;
    END IF;
    INSERT INTO fencing_high_water AS h (resource, token)
    VALUES (advance.resource, advance.token)
    ON CONFLICT ON CONSTRAINT fencing_high_water_pkey DO UPDATE
        SET token = excluded.token
        WHERE h.token < excluded.token;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT h.token INTO mark FROM fencing_high_water AS h WHERE h.resource = advance.resource; -- locked by now
    IF mark <> advance.token THEN
        PERFORM raise_stale(advance.resource, advance.token, mark);
    END IF;
END
$$;
COMMENT ON FUNCTION advance(text, bigint) IS 'pglock: raise the mark of a resource to this token, or fail with PGL01 if it is higher';

-- GRANT by a role that may use something, and may not pass that on, only warns.
CREATE FUNCTION require_right(has boolean, role_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('pglock: %I may not grant rights in schema %I to %I', current_user, current_schema(), role_name);
    END IF;
END
$$;

-- Rights for those who check fences and write as holders. To take them back: REVOKE, or
-- DROP OWNED BY the role.
CREATE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION check_fence(text, bigint), guard(text, bigint), bind(text, bigint), advance(text, bigint) TO %I', role_name);
    PERFORM require_right(has_function_privilege(role_name, 'bind(text, bigint)', 'EXECUTE'), role_name);
END
$$;
COMMENT ON FUNCTION grant_writer(text) IS 'pglock: give a role what it needs to write as a holder';

-- Rights for those who acquire locks, and write as holders.
CREATE FUNCTION grant_user(role_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM grant_writer(role_name);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks, lock_waiters TO %I', role_name);
    EXECUTE format('GRANT USAGE ON SEQUENCE fencing_tokens TO %I', role_name);
    -- So that a service that migrates when it starts sees that there is nothing to do.
    IF to_regclass('pglock_migrations') IS NOT NULL THEN
        EXECUTE format('GRANT SELECT ON pglock_migrations TO %I', role_name);
    END IF;
    PERFORM require_right(has_table_privilege(role_name, 'distributed_locks', 'INSERT'), role_name);
END
$$;
COMMENT ON FUNCTION grant_user(text) IS 'pglock: give a role what it needs to acquire locks and to write as a holder';

-- Who may use the schema to look at locks may not hold their rows, or raise marks.
REVOKE EXECUTE ON FUNCTION check_fence(text, bigint), guard(text, bigint), bind(text, bigint), advance(text, bigint) FROM PUBLIC;

-- Pins each function to this schema, by its search_path or by its names. The writer's temporary tables come last, so that a
-- "distributed_locks" of its own has no part in it.
DO $pin$
DECLARE
    f    record;
    here text := CASE WHEN current_schema() ~ '^[a-z_][a-z0-9_]*$' THEN current_schema()::text
                      ELSE 'x' || to_hex(hashtextextended(current_schema()::text, 0)) END;
BEGIN
    FOR f IN
        SELECT p.oid, p.oid::regprocedure AS name, pg_get_functiondef(p.oid) AS definition
        FROM pg_proc AS p
        WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
          AND p.proname IN ('raise_stale', 'require_fence', 'check_fence', 'guard', 'bind', 'advance', 'require_right',
                            'grant_writer', 'grant_user')
    LOOP
        EXECUTE replace(replace(f.definition, '<schema>', here), '"<here>"', quote_ident(current_schema()));
        IF f.definition NOT LIKE '%"<here>"%' THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', f.name, current_schema());
        END IF;
    END LOOP;
END
$pin$;

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
