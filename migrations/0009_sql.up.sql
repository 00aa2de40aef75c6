-- Locks for programs in any language, of which docs/reference/sql-protocol.md is the contract.
--
-- The functions call what the Go client calls, where that is a function, and otherwise do for one
-- name what its statements do. Their search_path is set, because a caller's may have operators and
-- functions of strangers.

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

-- Call it once for each connection: it also raises the tokens above those that a failover has lost.
CREATE FUNCTION check_client(knows integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unsafe text := "<here>".unsafe_server();
BEGIN
    IF unsafe IS NOT NULL THEN
        RAISE EXCEPTION 'pglock: %', unsafe USING ERRCODE = 'feature_not_supported';
    ELSIF knows < "<here>".pglock_oldest_client() OR knows > "<here>".pglock_schema_version() THEN
        RAISE EXCEPTION 'pglock: the tables are at version % and serve clients from version % on, and this one knows %',
            "<here>".pglock_schema_version(), "<here>".pglock_oldest_client(), knows USING ERRCODE = 'feature_not_supported';
    END IF;
    PERFORM "<here>".lift_fencing_tokens();
END
$$;
COMMENT ON FUNCTION check_client(integer) IS 'pglock: fail unless a client written for that version can use the tables';

-- request is the same for all attempts of one acquire, so that an attempt whose answer was lost can
-- be repeated. ticket is from wait_ticket; 0 overtakes those that wait; null waits behind them
-- without a place. A refused attempt writes nothing.
CREATE FUNCTION acquire(
    lock_name text, holder text, ttl interval DEFAULT interval '30 s', labels jsonb DEFAULT '{}', request uuid DEFAULT gen_random_uuid(),
    ticket bigint DEFAULT NULL, permits integer DEFAULT 0, weight integer DEFAULT 1,
    OUT granted boolean, OUT token bigint, OUT held_by text, OUT remaining interval, OUT ahead integer)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    a  record;
    us bigint := extract(epoch FROM ttl) * 1000000;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'pglock: acquire needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    ELSIF (us > 0 AND octet_length(holder) BETWEEN 1 AND 512 AND jsonb_typeof(labels) = 'object' AND pg_column_size(labels) < 65536 AND permits >= 0
           AND weight BETWEEN 1 AND greatest(permits, 1)) IS NOT TRUE THEN
        RAISE EXCEPTION 'pglock: acquire: the TTL must be positive, the holder have 1 to 512 bytes, the labels be an object of less than 64 kB, and the weight be 1 to the number of permits'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR attempt IN 1..3 LOOP
        SELECT * INTO a FROM "<here>".acquire_slots(ARRAY[lock_name], ARRAY[permits], ARRAY[weight], request, holder, labels, us,
                                                    coalesce(ticket, 9223372036854775807), true);
        EXIT WHEN a.outcome <> 'again'; -- the name was pruned meanwhile
    END LOOP;
    CASE a.outcome
        WHEN 'kind' THEN
            RAISE EXCEPTION 'pglock: acquire "%": it has % permits, not %', lock_name, a.ahead, permits USING ERRCODE = 'PGL11';
        WHEN 'spent' THEN
            RAISE EXCEPTION 'pglock: acquire "%": the grant of this request has ended', lock_name
                USING ERRCODE = 'PGL12', HINT = 'Use a new request for each acquire.';
        ELSE
            granted := a.outcome = 'granted';
            token := nullif(a.token, 0);
            held_by := CASE WHEN granted THEN holder ELSE a.holder END;
            remaining := a.remaining * interval '1 microsecond';
            ahead := a.ahead;
    END CASE;
END
$$;
COMMENT ON FUNCTION acquire(text, text, interval, jsonb, uuid, bigint, integer, integer) IS 'pglock: one attempt to acquire a lock';

-- renew.sql for one grant, which says why it is safe. A grant that another transaction changes at
-- the moment is skipped, so that nobody waits, and the function fails with 55P03.
CREATE FUNCTION renew(lock_name text, grant_token bigint, ttl interval DEFAULT interval '30 s')
RETURNS TABLE (remaining interval, release_request text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    ttl := make_interval(secs => extract(epoch FROM ttl)); -- a day may have 25 hours
    PERFORM "<here>".commit_durably();
    RETURN QUERY
        UPDATE "<here>".distributed_locks AS l
        SET version = "<here>".next_version(l.version), expires_at = greatest(l.expires_at, clock_timestamp() + ttl)
        WHERE l.expires_at > clock_timestamp() AND l.ctid = (
            SELECT f.ctid FROM "<here>".distributed_locks AS f
            WHERE f.name = lock_name AND f.token = grant_token AND f.holder IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING l.expires_at - clock_timestamp(), l.release_request;
    IF NOT FOUND THEN
        RETURN QUERY
            UPDATE "<here>".lock_permits AS p
            SET version = "<here>".next_version(p.version), expires_at = greatest(p.expires_at, clock_timestamp() + ttl)
            WHERE p.expires_at > clock_timestamp() AND p.ctid = (
                SELECT f.ctid FROM "<here>".lock_permits AS f
                WHERE f.name = lock_name AND f.token = grant_token AND f.holder IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING p.expires_at - clock_timestamp(), p.release_request;
    END IF;
    IF NOT FOUND AND EXISTS (SELECT FROM "<here>".locks_held AS h WHERE h.name = lock_name AND h.token = grant_token) THEN
        RAISE EXCEPTION 'pglock: renew "%": the grant is in use by another transaction', lock_name
            USING ERRCODE = 'lock_not_available', HINT = 'Try again soon.';
    END IF;
END
$$;
COMMENT ON FUNCTION renew(text, bigint, interval) IS 'pglock: extend a grant; no row: it is lost';

CREATE FUNCTION release(lock_name text, grant_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM "<here>".release_permits(lock_name, grant_token, true);
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION release(text, bigint) IS 'pglock: release a grant; false: it had ended';

-- "client" is the channel that a release notifies when the caller's turn has come, with the name as
-- the payload, and must differ between callers.
CREATE FUNCTION wait_ticket(lock_name text, client text, holder text, weight integer DEFAULT 1, OUT ticket bigint, OUT ahead bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    valid   CONSTANT interval := CASE WHEN weight > 1 THEN interval '3 s' ELSE interval '30 s' END;
    used_up CONSTANT bigint := coalesce((SELECT l.ticket FROM "<here>".distributed_locks AS l WHERE l.name = lock_name), 0);
BEGIN
    PERFORM "<here>".commit_lazily();
    UPDATE "<here>".lock_waiters AS w SET expires_at = clock_timestamp() + valid
    WHERE w.name = lock_name AND w.client = wait_ticket.client AND w.weight = wait_ticket.weight AND w.expires_at > clock_timestamp()
      AND w.state = 'queued' AND w.ticket > used_up
    RETURNING w.ticket INTO ticket;
    IF NOT FOUND THEN
        INSERT INTO "<here>".lock_waiters AS w (name, client, ticket, expires_at, holder, weight)
        VALUES (lock_name, wait_ticket.client, "<here>".next_ticket(), clock_timestamp() + valid, wait_ticket.holder, wait_ticket.weight)
        ON CONFLICT (name, client) DO UPDATE
            SET ticket = excluded.ticket, state = excluded.state, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
                weight = excluded.weight
        RETURNING w.ticket INTO ticket;
    END IF;
    ahead := (SELECT count(*) FROM "<here>".queue(lock_name, used_up) AS w WHERE w.ticket < wait_ticket.ticket);
END
$$;
COMMENT ON FUNCTION wait_ticket(text, text, text, integer) IS 'pglock: a ticket in the queue for a name, or a refresh of it';

CREATE FUNCTION leave(lock_name text, client text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM "<here>".leave_queue(ARRAY[lock_name], client, NULL, true);
END
$$;
COMMENT ON FUNCTION leave(text, text) IS 'pglock: leave the queue for a name';

CREATE FUNCTION watch(lock_name text, channel text, duration interval DEFAULT interval '30 s') RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM "<here>".commit_lazily();
    INSERT INTO "<here>".lock_waiters (name, client, ticket, state, expires_at)
    VALUES (lock_name, channel, 0, 'watching', clock_timestamp() + duration)
    ON CONFLICT (name, client) DO UPDATE SET expires_at = excluded.expires_at;
END
$$;
COMMENT ON FUNCTION watch(text, text, interval) IS 'pglock: be notified of a name''s releases';

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 9';
