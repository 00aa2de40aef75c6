-- Permits: the statements of semaphores and readers-writer locks; and those of several names.
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
--   request      of the last grant that was exclusive or was released
--   room_since   not before that time could the head of the queue be granted
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
-- * No deadlock. The gate is locked before permits, and a statement locks one gate.
-- * Token order. A token is drawn while the gate is locked.
-- * Repeating an acquire is safe: a request has one permit at most (the unique index).

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
COMMENT ON FUNCTION head_weight(text, bigint) IS 'pglock: the permits that the next waiter needs';

-- Notifies the head of the queue if it needs no more than the room, and otherwise only the clients
-- that watch the lock. Returns whether a waiter was notified.
CREATE FUNCTION wake_if_fits(lock text, used_up bigint, need integer, room integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF room >= need THEN
        RETURN "<here>".wake_next(lock, used_up);
    END IF;
    PERFORM pg_catalog.pg_notify(w.client, lock) FROM "<here>".lock_waiters AS w
    WHERE w.name = lock AND w.ticket = -1 AND w.expires_at > pg_catalog.clock_timestamp();
    RETURN false;
END
$$;
COMMENT ON FUNCTION wake_if_fits(text, bigint, integer, integer) IS 'pglock: notify the next waiter if there are enough permits for it';

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

-- Deletes expired permits that no guarded transaction uses, and returns the sum of their weights, but
-- no more than are in use: a role may have inserted rows of its own. The caller has locked the gate.
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
    SELECT least(coalesce(sum(g.weight), 0), (SELECT l.in_use FROM "<here>".distributed_locks AS l WHERE l.name = lock)) INTO freed
    FROM gone AS g;
    RETURN freed;
END
$$;
COMMENT ON FUNCTION free_expired_permits(text) IS 'pglock: delete expired permits; the caller corrects in_use';

-- Makes an exclusive grant, and returns its token. The caller has locked the gate, and found that all
-- permits are free.
CREATE FUNCTION grant_all_permits(lock text, request_id uuid, who text, tags jsonb, us bigint, used_up bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    granted bigint;
BEGIN
    PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR UPDATE; -- see distributed_locks
    UPDATE "<here>".distributed_locks AS l
    SET token = greatest("<here>".next_fencing_token(), l.token + 1), version = l.version % 9223372036854775807 + 1,
        ticket = greatest(l.ticket, used_up), in_use = 0,
        acquired_at = clock_timestamp(), expires_at = clock_timestamp() + us * interval '1 microsecond', release_request = NULL,
        last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
        ended_at = nullif(greatest(l.ended_at, l.expires_at), '-infinity'),
        request = request_id, holder = who, labels = tags
    WHERE l.name = lock
    RETURNING l.token INTO granted;
    RETURN granted;
END
$$;
COMMENT ON FUNCTION grant_all_permits(text, uuid, text, jsonb, bigint, bigint) IS 'pglock: grant all permits to one holder; the caller has locked the gate';

-- Turns the exclusive grant of the gate into one of "weight" permits, with the same token. The caller
-- has locked the gate, and corrects room_since.
CREATE FUNCTION share_grant(lock text, weight integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels, release_request)
    SELECT l.name, l.token, share_grant.weight, 1, l.acquired_at, l.expires_at, l.request, l.holder, l.labels, l.release_request
    FROM "<here>".distributed_locks AS l WHERE l.name = lock;
    UPDATE "<here>".distributed_locks AS l
    SET in_use = share_grant.weight, version = l.version % 9223372036854775807 + 1,
        holder = NULL, expires_at = '-infinity', labels = '{}', release_request = NULL
    WHERE l.name = lock;
END
$$;
COMMENT ON FUNCTION share_grant(text, integer) IS 'pglock: turn an exclusive grant into one of some permits; the caller has locked the gate';

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
    first     record; -- the live permit that expires first
    mine      bigint; -- the token of this request's grant
    until     timestamptz;
    owner     text;
    room      integer;
    need      integer; -- by the head of the queue
    freed     integer := 0;
    silent    boolean;
    used_up   bigint;
    guarded   boolean := false; -- a guarded transaction of an earlier exclusive grant uses the gate
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
            SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = acquire_permits.lock FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN -- in use for a moment, or guarded, perhaps for long
                PERFORM set_config('lock_timeout', '250ms', true);
                SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = acquire_permits.lock FOR NO KEY UPDATE;
                IF NOT FOUND THEN
                    RETURN;
                END IF;
                PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = acquire_permits.lock FOR UPDATE SKIP LOCKED;
                guarded := NOT FOUND;
            END IF;
        END IF;
        -- Without a ticket and with room, it likely succeeds: the checks below run once, under the lock.
        CONTINUE WHEN locked = 0 AND my_ticket = 9223372036854775807
            AND gate.holder IS NULL AND gate.capacity = permits AND gate.capacity - gate.in_use >= weight;

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
        IF locked = 0 AND my_ticket BETWEEN 1 AND 9223372036854775806 THEN
            -- A waiter takes the ticket over from one of its client that needed another number.
            UPDATE "<here>".lock_waiters AS w SET weight = acquire_permits.weight
            WHERE w.ctid = (SELECT v.ctid FROM "<here>".lock_waiters AS v
                            WHERE v.name = acquire_permits.lock AND v.ticket = my_ticket AND v.weight <> acquire_permits.weight
                            FOR UPDATE SKIP LOCKED);
        END IF;
        SELECT count(*) INTO ahead FROM "<here>".lock_waiters AS w
        WHERE w.name = acquire_permits.lock AND w.ticket > gate.ticket AND w.ticket < my_ticket AND w.expires_at > clock_timestamp();

        IF gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN
            outcome := 'busy'; token := gate.token; holder := gate.holder;
            remaining := (extract(epoch FROM gate.expires_at - clock_timestamp()) * 1000000)::bigint;
            RETURN;
        ELSIF guarded THEN
            outcome := 'busy'; token := gate.token;
            IF (gate.room_since > clock_timestamp() - interval '500 ms') IS NOT TRUE THEN -- the head could not be granted until now
                UPDATE "<here>".distributed_locks AS l SET room_since = clock_timestamp(), version = l.version % 9223372036854775807 + 1
                WHERE l.name = acquire_permits.lock;
            END IF;
            RETURN;
        END IF;
        room := gate.capacity - gate.in_use;
        silent := false;
        IF room < weight OR ahead > 0 THEN
            need := "<here>".head_weight(acquire_permits.lock, gate.ticket);
            dead := EXISTS (SELECT FROM "<here>".lock_permits AS p WHERE p.name = acquire_permits.lock AND p.expires_at <= clock_timestamp());
            -- The head is silent if it could have been granted for that long: since there is room
            -- for it, and since the waiters before it were granted, left or died.
            silent := room >= need AND greatest(
                gate.acquired_at, gate.room_since, gate.expires_at,
                (SELECT max(w.expires_at) FROM "<here>".lock_waiters AS w
                 WHERE w.name = acquire_permits.lock AND w.ticket > gate.ticket AND w.ticket < my_ticket AND w.expires_at <= clock_timestamp())
                ) <= clock_timestamp() - interval '1500 ms';
            IF locked = 1 THEN
                freed := "<here>".free_expired_permits(acquire_permits.lock);
                room := room + freed;
            END IF;
        END IF;
        IF (room < weight OR ahead > 0 AND NOT silent) AND (locked = 1 OR NOT dead) THEN
            outcome := 'busy'; token := gate.token;
            IF room < weight THEN
                SELECT p.token, p.expires_at, p.holder INTO first FROM "<here>".lock_permits AS p
                WHERE p.name = acquire_permits.lock AND p.expires_at > clock_timestamp() ORDER BY p.expires_at LIMIT 1;
                IF FOUND THEN
                    token := first.token; holder := first.holder;
                    remaining := greatest((extract(epoch FROM first.expires_at - clock_timestamp()) * 1000000)::bigint, 1);
                END IF;
            END IF;
            IF freed > 0 THEN
                UPDATE "<here>".distributed_locks AS l
                SET in_use = gate.capacity - room, version = l.version % 9223372036854775807 + 1,
                    room_since = CASE WHEN room >= need AND room - freed < need THEN clock_timestamp() ELSE l.room_since END
                WHERE l.name = acquire_permits.lock;
                IF notify THEN
                    PERFORM "<here>".wake_if_fits(acquire_permits.lock, gate.ticket, need, room);
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
        until := clock_timestamp() + us * interval '1 microsecond';
        IF weight = permits THEN
            mine := "<here>".grant_all_permits(acquire_permits.lock, request_id, who, tags, us, used_up);
        ELSE
            mine := greatest("<here>".next_fencing_token(), gate.token + 1);
            INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels)
            VALUES (acquire_permits.lock, mine, acquire_permits.weight, 1, clock_timestamp(), until, request_id, who, tags);
            room := room - acquire_permits.weight;
            UPDATE "<here>".distributed_locks AS l
            SET token = mine, version = l.version % 9223372036854775807 + 1, ticket = used_up, in_use = gate.capacity - room,
                acquired_at = clock_timestamp(), expires_at = '-infinity', release_request = NULL,
                last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
                ended_at = nullif(greatest(l.ended_at, l.expires_at), '-infinity'),
                holder = NULL, labels = '{}'
            WHERE l.name = acquire_permits.lock;
            IF notify AND room > 0 THEN
                PERFORM "<here>".wake_if_fits(acquire_permits.lock, used_up, "<here>".head_weight(acquire_permits.lock, used_up), room);
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

-- Ends a grant, "how" is released or revoked. Notifies the head of the queue if there is room for it
-- and "notify" is true. Returns no row if the grant is not current, or was released before: see
-- release.sql and revoke_grant.sql. "why" is the reason of a revocation.
CREATE FUNCTION release_permits(lock text, grant_token bigint, notify boolean, how text DEFAULT 'released', why text DEFAULT NULL) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    gate   record;
    mine   record;
    before integer; -- the room
    room   integer;
    need   integer; -- by the head of the queue
    waiting boolean;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    IF how = 'released' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSE
        PERFORM "<here>".commit_durably();
    END IF;
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = release_permits.lock FOR NO KEY UPDATE;
    before := gate.capacity - gate.in_use;
    room := before;
    IF gate.token = grant_token AND gate.holder IS NOT NULL THEN
        mine := gate;
        before := 0;
    ELSE
        WITH free AS MATERIALIZED (
            SELECT p.ctid FROM "<here>".lock_permits AS p
            WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM "<here>".lock_permits AS p USING free AS f WHERE p.ctid = f.ctid
        RETURNING p.holder, p.request, p.weight INTO mine;
        IF FOUND THEN
            room := least(room + mine.weight, gate.capacity); -- a row that a user forged may weigh more
        ELSE
            SELECT p.holder, p.request INTO mine FROM "<here>".lock_permits AS p
            WHERE p.name = release_permits.lock AND p.token = grant_token AND p.holder IS NOT NULL;
            IF NOT FOUND THEN
                IF how = 'revoked' AND gate.revoked_permits ? grant_token::text THEN
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
    IF EXISTS (SELECT FROM "<here>".lock_permits AS p WHERE p.name = release_permits.lock AND p.expires_at <= clock_timestamp()) THEN
        room := room + "<here>".free_expired_permits(release_permits.lock);
    END IF;
    -- The functions below cost more than the rest.
    waiting := EXISTS (SELECT FROM "<here>".lock_waiters AS w WHERE w.name = release_permits.lock);
    need := CASE WHEN waiting THEN "<here>".head_weight(release_permits.lock, gate.ticket) ELSE 1 END;
    UPDATE "<here>".distributed_locks AS l
    SET in_use = gate.capacity - room, version = l.version % 9223372036854775807 + 1,
        holder = NULL, expires_at = '-infinity', request = mine.request,
        last_holder = mine.holder, last_end = how, ended_at = clock_timestamp(),
        revoked_token = CASE WHEN how = 'revoked' THEN grant_token ELSE l.revoked_token END,
        revoked_reason = CASE WHEN how = 'revoked' THEN why ELSE l.revoked_reason END,
        -- Each of the holders is to learn why. Beyond that size it begins anew, because a row that others
        -- have written may be anything.
        revoked_permits = CASE
            WHEN how <> 'revoked' THEN l.revoked_permits
            WHEN pg_column_size(l.revoked_permits) < 16384 THEN l.revoked_permits || jsonb_build_object(grant_token, coalesce(why, ''))
            ELSE jsonb_build_object(grant_token, coalesce(why, '')) END,
        room_since = CASE WHEN room >= need AND before < need THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = release_permits.lock;
    RETURN NEXT notify AND waiting AND "<here>".wake_if_fits(release_permits.lock, gate.ticket, need, room);
END
$$;
COMMENT ON FUNCTION release_permits(text, bigint, boolean, text, text) IS 'pglock: end a grant of a semaphore or a readers-writer lock';

-- Waits until no guarded transaction uses the revoked permits of a grant, for a second at most, and
-- then frees them and notifies the head of the queue if "notify" and it fits.
--
-- It locks a permit before the gate. That can't deadlock: nobody who holds the gate waits for a
-- permit that has no holder.
CREATE FUNCTION await_permit_guards(lock text, grant_token bigint, notify boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gate   record;
    before integer;
    room   integer;
    need   integer;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    PERFORM FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.token = grant_token AND p.holder IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false; -- it was free at once
    END IF;
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
    before := gate.capacity - gate.in_use;
    room := before + "<here>".free_expired_permits(lock);
    need := "<here>".head_weight(lock, gate.ticket);
    UPDATE "<here>".distributed_locks AS l
    SET in_use = gate.capacity - room, version = l.version % 9223372036854775807 + 1,
        room_since = CASE WHEN room >= need AND before < need THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = lock;
    RETURN notify AND "<here>".wake_if_fits(lock, gate.ticket, need, room);
END
$$;
COMMENT ON FUNCTION await_permit_guards(text, bigint, boolean) IS 'pglock: wait for the guards of revoked permits';

-- Turns the grant of a writer into that of a reader, with the same token, and notifies the head of
-- the queue if "notify" and it fits. There is no time without a grant. A guarded transaction of the
-- writer keeps all others out until it ends: it has locked the gate.
--
-- Returns one row if the grant is a reader's: whether a waiter was notified. No row: it is not
-- current. Repeating it is safe.
CREATE FUNCTION downgrade_permits(lock text, grant_token bigint, notify boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gate record;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
    IF gate.token = grant_token AND gate.holder IS NOT NULL AND gate.expires_at > clock_timestamp() THEN
        PERFORM "<here>".share_grant(lock, 1);
    ELSIF NOT EXISTS (
        SELECT FROM "<here>".lock_permits AS p
        WHERE p.name = lock AND p.token = grant_token AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp())
    THEN
        RETURN;
    END IF;
    -- A repetition changes the gate too: its commit follows that of the first one in the log.
    PERFORM "<here>".commit_durably();
    UPDATE "<here>".distributed_locks AS l
    SET version = l.version % 9223372036854775807 + 1, room_since = CASE WHEN gate.holder IS NULL THEN l.room_since ELSE clock_timestamp() END
    WHERE l.name = lock;
    RETURN NEXT gate.holder IS NOT NULL AND notify
        AND "<here>".wake_if_fits(lock, gate.ticket, "<here>".head_weight(lock, gate.ticket), gate.capacity - 1);
END
$$;
COMMENT ON FUNCTION downgrade_permits(text, bigint, boolean) IS 'pglock: turn a writer into a reader';

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
    freed integer;
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
        freed := "<here>".free_expired_permits(upgrade_permits.lock);
        -- A guard of an earlier exclusive grant is not waited for: see acquire_permits.
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = upgrade_permits.lock FOR UPDATE SKIP LOCKED;
        IF FOUND AND gate.in_use - freed = mine.weight THEN
            -- This waits for a renewal in progress. Afterwards only a guard can hold the row.
            PERFORM FROM "<here>".lock_permits AS p WHERE p.name = upgrade_permits.lock AND p.token = grant_token FOR NO KEY UPDATE;
            DELETE FROM "<here>".lock_permits AS p
            WHERE p.ctid = (SELECT q.ctid FROM "<here>".lock_permits AS q WHERE q.name = upgrade_permits.lock AND q.token = grant_token FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                PERFORM "<here>".commit_durably();
                UPDATE "<here>".distributed_locks AS l SET last_holder = mine.holder, last_end = 'released', ended_at = clock_timestamp()
                WHERE l.name = upgrade_permits.lock;
                until := clock_timestamp() + us * interval '1 microsecond';
                outcome := 'granted';
                token := "<here>".grant_all_permits(upgrade_permits.lock, request_id, who, tags, us, 0);
            END IF;
        END IF;
        IF outcome IS NULL THEN
            outcome := 'busy';
            SELECT p.token, p.holder, p.expires_at INTO token, holder, until FROM "<here>".lock_permits AS p
            WHERE p.name = upgrade_permits.lock AND p.expires_at > clock_timestamp() ORDER BY p.token = grant_token, p.expires_at LIMIT 1;
            IF freed > 0 THEN
                UPDATE "<here>".distributed_locks AS l SET in_use = l.in_use - freed, version = l.version % 9223372036854775807 + 1
                WHERE l.name = upgrade_permits.lock;
            END IF;
        END IF;
    END IF;
    remaining := greatest((extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint, 1);
END
$$;
COMMENT ON FUNCTION upgrade_permits(text, bigint, uuid, text, jsonb, bigint) IS 'pglock: turn the only reader into a writer';

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
    INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use)
    VALUES (lock, "<here>".next_fencing_token(), 1, clock_timestamp(), '-infinity', permits, 0)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
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
        PERFORM "<here>".share_grant(lock, gate.capacity);
        PERFORM "<here>".commit_durably();
        used := gate.capacity;
    END IF;
    need := "<here>".head_weight(lock, gate.ticket);
    UPDATE "<here>".distributed_locks AS l
    SET capacity = permits, version = l.version % 9223372036854775807 + 1,
        room_since = CASE WHEN permits - used >= need AND gate.capacity - used < need THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = lock;
    IF notify THEN
        PERFORM "<here>".wake_next(lock, gate.ticket); -- one that fails now leaves, and wakes the next one
    END IF;
    RETURN gate.capacity;
END
$$;
COMMENT ON FUNCTION resize_permits(text, integer, boolean) IS 'pglock: set the number of permits of a semaphore';

-- Several names: acquire all of them, or nothing.
--
-- A caller that waits has one ticket, in a row of lock_waiters for each name. So of all callers that
-- wait, the one with the smallest ticket is the head of each of its queues. Nothing is held while
-- waiting, so each of its names gets free, and nobody else is granted a free one: there is neither
-- deadlock nor starvation. The price is that a name may be free while its head waits for another one.

-- Inserts missing names, which are free then, in the order of names. It waits for another insert of the
-- same name for a quarter of a second at most, and then fails (lock_not_available).
CREATE FUNCTION create_free(lock_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT count(*) FROM "<here>".distributed_locks AS l WHERE l.name = ANY (lock_names)) < cardinality(lock_names) THEN
        PERFORM set_config('lock_timeout', '250ms', true);
        INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at)
        SELECT a.name, "<here>".next_fencing_token(), 1, clock_timestamp(), '-infinity'
        FROM unnest(lock_names) AS a (name)
        WHERE NOT EXISTS (SELECT FROM "<here>".distributed_locks AS l WHERE l.name = a.name)
        ORDER BY a.name COLLATE "C"
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;
COMMENT ON FUNCTION create_free(text[]) IS 'pglock: insert missing names, free';

-- Grants the distinct names to the holder "who" for "us" microseconds, with one token, if all of them
-- are free and no valid ticket below my_ticket waits for any of them. my_ticket is that of
-- acquire_full.sql. The names are sorted by their bytes.
--
-- outcome:
--   granted  token, remaining microseconds
--   busy     token, holder and remaining microseconds of the grant in the way that lasts longest, and
--            its name. Without a holder, all names are free or about to be, but a row is locked or
--            "ahead" waiters have smaller tickets; "invalid" tickets
--   spent    this request won before, and its grant of some name has ended: try with a new one
--   kind     a name is a semaphore's or a readers-writer lock's, of "remaining" permits
--
-- Why it is safe:
-- * All or nothing. All rows are locked before they are judged. The statements after the lock have a
--   snapshot of their own, and nobody else changes a locked row. All rows are changed by one statement,
--   in one transaction.
-- * No deadlock. It waits for no row lock (SKIP LOCKED), and only for inserts in the order of names
--   (create_free).
-- * Losing is free. A caller that can't succeed finds that out before it locks or inserts a row.
-- * Token order. The token is drawn while all rows are locked, and is above that of each.
-- * FOR UPDATE conflicts with a guard of an earlier grant: see acquire_full.sql.
-- * Repeating it is safe, and a recognized grant is durable: see acquire_full.sql.
-- * Queue order. A ticket is skipped as in acquire_full.sql. An invalid one is not granted anything.
CREATE FUNCTION acquire_all(
    lock_names text[], request_id uuid, who text, tags jsonb, us bigint, my_ticket bigint,
    OUT outcome text, OUT name text, OUT token bigint, OUT holder text, OUT remaining bigint, OUT ahead integer, OUT invalid boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n       CONSTANT integer := cardinality(lock_names);
    queued  CONSTANT boolean := my_ticket BETWEEN 1 AND 9223372036854775806;
    l       record;
    counted integer; -- rows
    ours    integer; -- rows that this request won
    live    integer; -- of these, held
    blocked boolean; -- a name is held, or a smaller ticket waits for it
    worst   interval; -- the time that remains of the grant that lasts longest
    newest  bigint;
    until   timestamptz;
BEGIN
    FOR locked IN 0..1 LOOP
        IF locked = 1 THEN
            IF counted < n THEN
                PERFORM "<here>".create_free(lock_names);
            END IF;
            PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = ANY (lock_names) ORDER BY l.name COLLATE "C" FOR UPDATE SKIP LOCKED;
            GET DIAGNOSTICS counted = ROW_COUNT;
            IF counted < n THEN
                RETURN; -- busy, without a holder
            END IF;
        END IF;

        outcome := 'busy'; name := lock_names[1]; token := 0; holder := NULL; remaining := 0; ahead := 0; invalid := false;
        counted := 0; ours := 0; live := 0; blocked := false; worst := NULL; newest := 0; until := NULL;
        FOR l IN
            SELECT d.name, d.token, d.ticket, d.holder, d.expires_at, d.ended_at, d.request, d.capacity, q.ahead, q.keep_until
            FROM unnest(lock_names) AS a (name)
            JOIN "<here>".distributed_locks AS d ON d.name = a.name
            CROSS JOIN LATERAL (
                SELECT count(*) AS ahead, max(w.keep_until) AS keep_until FROM "<here>".lock_waiters AS w
                WHERE w.name = d.name AND w.ticket > d.ticket AND w.ticket < my_ticket AND w.expires_at > clock_timestamp()) AS q
        LOOP
            IF l.capacity IS NOT NULL THEN
                outcome := 'kind'; name := l.name; remaining := l.capacity;
                RETURN;
            END IF;
            counted := counted + 1;
            newest := greatest(newest, l.token);
            ahead := greatest(ahead, l.ahead);
            invalid := invalid OR queued AND l.ticket >= my_ticket;
            IF l.request = request_id THEN
                ours := ours + 1;
                IF l.holder IS NOT NULL AND l.expires_at > clock_timestamp() THEN
                    live := live + 1; token := l.token; until := least(until, l.expires_at);
                END IF;
            ELSIF l.expires_at > clock_timestamp() THEN
                blocked := true;
                IF worst IS NULL OR l.expires_at - clock_timestamp() > worst THEN
                    worst := l.expires_at - clock_timestamp();
                    name := l.name; token := l.token; holder := l.holder;
                    remaining := greatest((extract(epoch FROM worst) * 1000000)::bigint, 1);
                END IF;
            ELSIF l.ahead > 0 AND (l.keep_until > clock_timestamp()
                                   OR greatest(l.ended_at, l.expires_at) > clock_timestamp() - interval '1500 ms') THEN
                blocked := true;
                IF worst IS NULL THEN
                    name := l.name; token := l.token;
                END IF;
            END IF;
        END LOOP;

        IF ours > 0 THEN
            IF live < n THEN
                outcome := 'spent';
                RETURN;
            END IF;
            PERFORM FROM "<here>".distributed_locks AS l
            WHERE l.name = ANY (lock_names) AND l.request = request_id AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
            ORDER BY l.name COLLATE "C" FOR NO KEY UPDATE SKIP LOCKED;
            GET DIAGNOSTICS counted = ROW_COUNT;
            IF counted < n THEN -- the first attempt may still wait for its standby
                token := 0;
                RETURN;
            END IF;
            PERFORM "<here>".commit_durably();
            UPDATE "<here>".distributed_locks AS l SET version = l.version % 9223372036854775807 + 1 WHERE l.name = ANY (lock_names);
            EXIT;
        END IF;
        IF blocked OR invalid THEN
            RETURN;
        END IF;
        CONTINUE WHEN locked = 0;

        PERFORM "<here>".commit_durably();
        token := greatest("<here>".next_fencing_token(), newest + 1);
        until := clock_timestamp() + us * interval '1 microsecond';
        UPDATE "<here>".distributed_locks AS l
        SET token = acquire_all.token, version = l.version % 9223372036854775807 + 1,
            ticket = CASE
                WHEN queued THEN my_ticket
                WHEN my_ticket > 0 AND greatest(l.ended_at, l.expires_at) <= clock_timestamp() - interval '1500 ms' THEN coalesce((
                    SELECT min(w.ticket) FROM "<here>".lock_waiters AS w
                    WHERE w.name = l.name AND w.ticket > l.ticket AND w.expires_at > clock_timestamp()), l.ticket)
                ELSE l.ticket END,
            acquired_at = clock_timestamp(), expires_at = until, release_request = NULL,
            last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
            ended_at = CASE WHEN l.holder IS NULL THEN l.ended_at ELSE nullif(l.expires_at, '-infinity') END,
            request = request_id, holder = who, labels = tags
        WHERE l.name = ANY (lock_names);
        EXIT;
    END LOOP;
    outcome := 'granted'; holder := NULL; ahead := 0; invalid := false;
    remaining := (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint;
END
$$;
COMMENT ON FUNCTION acquire_all(text[], uuid, text, jsonb, bigint, bigint) IS 'pglock: grant several names, or none';

-- Draws one ticket for a caller in the queues of all the names, valid for "us" microseconds, and not
-- skipped for "keep_us". It replaces an earlier ticket of the caller. The caller waits as the holder
-- "who", for waited_us microseconds so far.
--
-- Returns the ticket, the largest number of other waiters for a name, whether all names are free, and
-- otherwise the remaining microseconds of the grant that lasts longest. The rows are written in the
-- order of names, like those of refresh_tickets.sql. It does not wait for its commit.
--
-- Missing names are inserted first: who inserts a name does not look at its queue.
--
-- A caller whose ticket was skipped at one name was perhaps the head at another one, which is free.
-- The next waiter there must learn of it.
CREATE FUNCTION join_all(
    lock_names text[], caller text, us bigint, keep_us bigint, who text, waited_us bigint, notify boolean,
    OUT ticket bigint, OUT ahead integer, OUT free boolean, OUT remaining bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    left_names text[];
    used_up    bigint[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    BEGIN
        PERFORM "<here>".create_free(lock_names);
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- somebody else is inserting one of them
    END;
    SELECT array_agg(l.name::text), array_agg(l.ticket) INTO left_names, used_up
    FROM unnest(lock_names) AS a (name)
    JOIN "<here>".lock_waiters AS w ON w.name = a.name AND w.client = caller
    JOIN "<here>".distributed_locks AS l ON l.name = a.name
    WHERE w.ticket > l.ticket AND l.expires_at <= clock_timestamp();

    INSERT INTO "<here>".lock_waiters AS w (name, client, expires_at, since, holder, keep_until) -- draws the ticket
    VALUES (lock_names[1], caller, clock_timestamp() + us * interval '1 microsecond',
            clock_timestamp() - waited_us * interval '1 microsecond', who, clock_timestamp() + keep_us * interval '1 microsecond')
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
            keep_until = excluded.keep_until
    RETURNING w.ticket INTO join_all.ticket;
    INSERT INTO "<here>".lock_waiters AS w (name, client, ticket, expires_at, since, holder, keep_until)
    SELECT a.name, caller, join_all.ticket, clock_timestamp() + us * interval '1 microsecond',
           clock_timestamp() - waited_us * interval '1 microsecond', who, clock_timestamp() + keep_us * interval '1 microsecond'
    FROM unnest(lock_names[2:]) AS a (name)
    ORDER BY a.name COLLATE "C"
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
            keep_until = excluded.keep_until;

    IF notify AND left_names IS NOT NULL THEN
        PERFORM "<here>".wake_each(left_names, used_up);
    END IF;
    SELECT coalesce(max(q.ahead), 0), coalesce(bool_and(coalesce(l.expires_at <= clock_timestamp(), true)), true),
           coalesce(max(CASE WHEN l.expires_at > clock_timestamp() THEN (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint END), 0)
    INTO ahead, free, remaining
    FROM unnest(lock_names) AS a (name)
    LEFT JOIN "<here>".distributed_locks AS l ON l.name = a.name
    CROSS JOIN LATERAL (
        SELECT count(*) AS ahead FROM "<here>".lock_waiters AS w
        WHERE w.name = a.name AND w.client <> caller AND w.ticket > coalesce(l.ticket, 0) AND w.expires_at > clock_timestamp()) AS q;
END
$$;
COMMENT ON FUNCTION join_all(text[], text, bigint, bigint, text, bigint, boolean) IS 'pglock: wait for several names with one ticket';

SELECT pin_functions('{head_weight,wake_if_fits,commit_durably,free_expired_permits,grant_all_permits,share_grant,acquire_permits,
    release_permits,await_permit_guards,downgrade_permits,upgrade_permits,resize_permits,create_free,acquire_all,join_all}');

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 5';
