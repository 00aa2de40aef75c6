-- Permits: the statements of semaphores and readers-writer locks.
--
-- Run with search_path set to the schema that holds the lock tables. All of this file is one
-- transaction. "<here>" is that schema; the end of this file puts it in. The functions run with the
-- rights of their caller.
--
-- A semaphore has n permits. A readers-writer lock has 2^30, of which a reader takes one and a
-- writer takes all. The row of the name in distributed_locks is the gate:
--   capacity     the number of permits; null for a lock that has one holder
--   in_use       the sum of the weights in lock_permits
--   holder       of an exclusive grant, one of all permits. Its statements are those of any lock
--   token        of the last grant
--   room_since   since when the head of the queue could be granted, if it could
--
-- Why it is safe:
-- * One at a time. Acquire and release lock the gate first. Each statement of a function has a
--   snapshot of its own, so the statements after the lock see what the previous holder of the gate
--   has committed. One statement could not do both: it would go on with the snapshot of its start.
-- * Losing is free. An acquire that can't succeed finds that out before it locks the gate.
-- * The gate is locked until the commit only: guards lock permits, or an exclusive grant. An
--   acquire waits for it for a quarter of a second at most (lock_timeout).
-- * A permit that a guarded transaction uses counts until that transaction ends, whether it has
--   expired or was released: its row is locked, and SKIP LOCKED leaves it alone.
-- * No deadlock. The gate is locked before permits, and a statement locks one gate.
-- * Token order. A token is drawn while the gate is locked.
-- * Repeating an acquire is safe: a request has one permit at most (the unique index).

-- Reports whether the head of the queue behind the ticket "used_up" fits into the room. Without a
-- waiter it is about a weight of one.
CREATE FUNCTION permits_fit(lock text, used_up bigint, room integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN room >= coalesce((
        SELECT w.weight FROM "<here>".lock_waiters AS w
        WHERE w.name = lock AND w.ticket > used_up AND w.expires_at > pg_catalog.clock_timestamp()
        ORDER BY w.ticket LIMIT 1), 1);
END
$$;
COMMENT ON FUNCTION permits_fit(text, bigint, integer) IS 'pglock: whether the next waiter for permits could be granted';

-- Returns the gate's new room_since after the room has changed.
CREATE FUNCTION fits_since(lock text, used_up bigint, room_before integer, room integer, since timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF "<here>".permits_fit(lock, used_up, room) AND NOT "<here>".permits_fit(lock, used_up, room_before) THEN
        RETURN pg_catalog.clock_timestamp();
    END IF;
    RETURN since;
END
$$;
COMMENT ON FUNCTION fits_since(text, bigint, integer, integer, timestamptz) IS 'pglock: since when the next waiter for permits could be granted';

-- Makes the transaction wait for its commit, and the server report a canceled wait for a standby.
CREATE FUNCTION commit_durably() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    IF pg_catalog.current_setting('client_min_messages') = 'error' THEN
        PERFORM pg_catalog.set_config('client_min_messages', 'warning', true);
    END IF;
END
$$;
COMMENT ON FUNCTION commit_durably() IS 'pglock: a grant must survive a crash';

-- Deletes expired permits that no guarded transaction uses, and returns the sum of their weights.
-- The caller has locked the gate.
CREATE FUNCTION free_expired_permits(lock text) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    freed integer;
BEGIN
    WITH dead AS MATERIALIZED (
        SELECT p.ctid FROM "<here>".lock_permits AS p
        WHERE p.name = lock AND p.expires_at <= pg_catalog.clock_timestamp()
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "<here>".lock_permits AS p USING dead AS d WHERE p.ctid = d.ctid RETURNING p.weight
    )
    SELECT coalesce(sum(g.weight), 0) INTO freed FROM gone AS g;
    RETURN freed;
END
$$;
COMMENT ON FUNCTION free_expired_permits(text) IS 'pglock: delete expired permits; the caller corrects in_use';

-- Grants "weight" of the "permits" of the lock to the holder "who" for "us" microseconds. my_ticket
-- is that of acquire_full.sql. If "notify", it notifies the next waiter if there is room for it.
--
-- outcome:
--   granted  token, remaining microseconds
--   busy     token, holder and remaining microseconds of the grant that ends first; without a
--            holder, there is room, but "ahead" waiters have smaller tickets; "invalid" tickets
--   spent    this request won before, and its grant has ended: try with a new one
--   kind     the lock has another number of permits ("remaining"), 0 if it is no semaphore
--   again    the gate was pruned meanwhile: try again
CREATE FUNCTION acquire_permits(
    lock text, permits integer, weight integer, request_id uuid, who text, tags jsonb, us bigint, my_ticket bigint, notify boolean,
    OUT outcome text, OUT token bigint, OUT holder text, OUT remaining bigint, OUT ahead integer, OUT invalid boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    gate      record;
    dead      boolean; -- there are expired permits
    first_token  bigint; -- of the live permit that expires first
    first_ends   timestamptz;
    first_holder text;
    mine      bigint; -- the token of this request's grant
    until     timestamptz;
    owner     text;
    room      integer;
    freed     integer := 0;
    silent    boolean;
    used_up   bigint;
    fits      boolean;
BEGIN
    outcome := 'again'; token := 0; remaining := 0; ahead := 0; invalid := false;
    FOR locked IN 0..1 LOOP
        IF locked = 0 THEN
            SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = acquire_permits.lock;
            IF NOT FOUND THEN
                PERFORM set_config('lock_timeout', '250ms', true);
                INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use)
                VALUES (acquire_permits.lock, "<here>".next_fencing_token(), 1, clock_timestamp(), '-infinity', acquire_permits.permits, 0)
                ON CONFLICT DO NOTHING;
                CONTINUE;
            END IF;
        ELSE
            PERFORM set_config('lock_timeout', '250ms', true);
            SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = acquire_permits.lock FOR UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        END IF;

        IF gate.capacity IS DISTINCT FROM permits THEN
            outcome := 'kind'; remaining := coalesce(gate.capacity, 0);
            RETURN;
        END IF;

        SELECT p.token, p.expires_at, p.holder INTO mine, until, owner FROM "<here>".lock_permits AS p
        WHERE p.name = acquire_permits.lock AND p.request = request_id;
        IF NOT FOUND AND gate.request = request_id THEN
            mine := gate.token; until := gate.expires_at; owner := gate.holder;
        END IF;
        IF mine IS NOT NULL THEN
            IF owner IS NULL OR until <= clock_timestamp() THEN
                outcome := 'spent';
                RETURN;
            END IF;
            CONTINUE WHEN locked = 0;
            PERFORM "<here>".commit_durably();
            -- The commit of this change follows that of the grant in the log: see acquire_full.sql.
            UPDATE "<here>".distributed_locks AS l SET version = l.version % 9223372036854775807 + 1
            WHERE l.name = acquire_permits.lock;
            EXIT;
        END IF;

        invalid := gate.ticket >= my_ticket;
        SELECT count(*) INTO ahead FROM "<here>".lock_waiters AS w
        WHERE w.name = acquire_permits.lock AND w.ticket > gate.ticket AND w.ticket < my_ticket AND w.expires_at > clock_timestamp();

        IF gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN
            outcome := 'busy'; token := gate.token; holder := gate.holder;
            remaining := (extract(epoch FROM gate.expires_at - clock_timestamp()) * 1000000)::bigint;
            RETURN;
        END IF;
        room := gate.capacity - gate.in_use;
        silent := false;
        IF locked = 1 AND (room < weight OR ahead > 0) THEN
            freed := "<here>".free_expired_permits(acquire_permits.lock);
            room := room + freed;
        END IF;
        IF room < weight OR ahead > 0 THEN
            SELECT p.token, p.expires_at, p.holder INTO first_token, first_ends, first_holder FROM "<here>".lock_permits AS p
            WHERE p.name = acquire_permits.lock AND p.expires_at > clock_timestamp() ORDER BY p.expires_at LIMIT 1;
            SELECT count(*) > 0, greatest(gate.room_since, gate.ended_at, gate.expires_at, max(p.expires_at)) <= clock_timestamp() - interval '1500 ms'
                AND "<here>".permits_fit(acquire_permits.lock, gate.ticket, room - freed)
            INTO dead, silent
            FROM "<here>".lock_permits AS p WHERE p.name = acquire_permits.lock AND p.expires_at <= clock_timestamp();
        END IF;
        IF (room < weight OR ahead > 0 AND silent IS NOT TRUE) AND (locked = 1 OR NOT dead) THEN
            outcome := 'busy'; token := gate.token;
            IF room < weight AND first_token IS NOT NULL THEN
                token := first_token; holder := first_holder;
                remaining := greatest((extract(epoch FROM first_ends - clock_timestamp()) * 1000000)::bigint, 1);
            END IF;
            IF freed > 0 THEN
                UPDATE "<here>".distributed_locks AS l
                SET in_use = gate.capacity - room, version = l.version % 9223372036854775807 + 1,
                    room_since = "<here>".fits_since(acquire_permits.lock, gate.ticket, room - freed, room, l.room_since)
                WHERE l.name = acquire_permits.lock;
                IF notify THEN
                    PERFORM "<here>".wake_next(acquire_permits.lock, gate.ticket);
                END IF;
            END IF;
            RETURN;
        END IF;
        CONTINUE WHEN locked = 0;

        PERFORM "<here>".commit_durably();
        used_up := CASE
            WHEN my_ticket < 9223372036854775807 THEN greatest(gate.ticket, my_ticket)
            WHEN silent THEN coalesce((
                SELECT min(w.ticket) FROM "<here>".lock_waiters AS w
                WHERE w.name = acquire_permits.lock AND w.ticket > gate.ticket AND w.expires_at > clock_timestamp()), gate.ticket)
            ELSE gate.ticket END;
        mine := greatest("<here>".next_fencing_token(), gate.token + 1);
        until := clock_timestamp() + us * interval '1 microsecond';
        IF weight = permits THEN
            UPDATE "<here>".distributed_locks AS l
            SET token = mine, version = l.version % 9223372036854775807 + 1, ticket = used_up, in_use = gate.capacity - room,
                acquired_at = clock_timestamp(), expires_at = until, release_request = NULL,
                last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
                ended_at = nullif(greatest(l.ended_at, l.expires_at), '-infinity'),
                request = request_id, holder = who, labels = tags
            WHERE l.name = acquire_permits.lock;
        ELSE
            INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels)
            VALUES (acquire_permits.lock, mine, acquire_permits.weight, 1, clock_timestamp(), until, request_id, who, tags);
            room := room - acquire_permits.weight;
            fits := room > 0 AND "<here>".permits_fit(acquire_permits.lock, used_up, room);
            UPDATE "<here>".distributed_locks AS l
            SET token = mine, version = l.version % 9223372036854775807 + 1, ticket = used_up, in_use = gate.capacity - room,
                acquired_at = clock_timestamp(), expires_at = '-infinity', room_since = clock_timestamp(), release_request = NULL,
                last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
                ended_at = nullif(greatest(l.ended_at, l.expires_at), '-infinity'),
                request = NULL, holder = NULL, labels = '{}'
            WHERE l.name = acquire_permits.lock;
            IF fits AND notify THEN
                PERFORM "<here>".wake_next(acquire_permits.lock, used_up);
            END IF;
        END IF;
        EXIT;
    END LOOP;
    IF mine IS NOT NULL THEN
        outcome := 'granted'; token := mine; ahead := 0; invalid := false;
        remaining := (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint;
    END IF;
END
$$;
COMMENT ON FUNCTION acquire_permits(text, integer, integer, uuid, text, jsonb, bigint, bigint, boolean) IS 'pglock: grant permits of a semaphore or a readers-writer lock';

-- Releases the permits of a grant, and notifies the head of the queue if it fits and "notify" is
-- true. Returns no row if the grant is not current, or was released before: see release.sql.
CREATE FUNCTION release_permits(lock text, grant_token bigint, notify boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    gate  record;
    freed integer;
    who   text;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '250ms', true);
    SELECT l.capacity - l.in_use AS room, l.ticket INTO gate
    FROM "<here>".distributed_locks AS l WHERE l.name = release_permits.lock FOR NO KEY UPDATE;
    WITH mine AS MATERIALIZED (
        SELECT p.ctid FROM "<here>".lock_permits AS p
        WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM "<here>".lock_permits AS p USING mine AS m WHERE p.ctid = m.ctid RETURNING p.weight, p.holder INTO freed, who;
    IF freed IS NULL THEN
        UPDATE "<here>".lock_permits AS p
        SET holder = NULL, expires_at = '-infinity', version = p.version % 9223372036854775807 + 1
        WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- A guarded transaction still uses it, or a renewal was in progress, which has ended by now.
        freed := 0;
    END IF;
    freed := freed + "<here>".free_expired_permits(release_permits.lock);
    UPDATE "<here>".distributed_locks AS l
    SET in_use = l.in_use - freed, version = l.version % 9223372036854775807 + 1,
        last_holder = coalesce(who, l.last_holder), last_end = 'released', ended_at = clock_timestamp(),
        room_since = "<here>".fits_since(release_permits.lock, gate.ticket, gate.room, gate.room + freed, l.room_since)
    WHERE l.name = release_permits.lock;
    RETURN NEXT notify AND "<here>".permits_fit(release_permits.lock, gate.ticket, gate.room + freed) AND "<here>".wake_next(release_permits.lock, gate.ticket);
END
$$;
COMMENT ON FUNCTION release_permits(text, bigint, boolean) IS 'pglock: release permits of a semaphore or a readers-writer lock';

-- Sets the number of permits, and creates the name if need be. Returns the number before; 0 if the
-- name is new; -1 if it has one holder, and -2 if it is a readers-writer lock: nothing was changed.
CREATE FUNCTION resize_permits(lock text, permits integer, notify boolean) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gate record;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use)
    VALUES (lock, "<here>".next_fencing_token(), 1, clock_timestamp(), '-infinity', permits, 0)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN 0;
    END IF;
    SELECT l.capacity, l.in_use, l.ticket INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
    IF gate.capacity IS NULL THEN
        RETURN -1;
    ELSIF gate.capacity = 1073741824 THEN
        RETURN -2;
    END IF;
    UPDATE "<here>".distributed_locks AS l
    SET capacity = permits, version = l.version % 9223372036854775807 + 1,
        room_since = "<here>".fits_since(lock, gate.ticket, gate.capacity - gate.in_use, permits - gate.in_use, l.room_since)
    WHERE l.name = lock;
    IF notify THEN
        PERFORM "<here>".wake_next(lock, gate.ticket);
    END IF;
    RETURN gate.capacity;
END
$$;
COMMENT ON FUNCTION resize_permits(text, integer, boolean) IS 'pglock: set the number of permits of a semaphore';

DO $pin$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT pg_get_functiondef(p.oid) AS definition
        FROM pg_proc AS p
        WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
          AND p.proname IN ('permits_fit', 'fits_since', 'commit_durably', 'free_expired_permits', 'acquire_permits', 'release_permits', 'resize_permits')
    LOOP
        EXECUTE replace(f.definition, '"<here>"', quote_ident(current_schema()));
    END LOOP;
END
$pin$;

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 5';
