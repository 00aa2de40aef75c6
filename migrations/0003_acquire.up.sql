-- Acquiring: acquire_slots grants a lock of any kind, and several at once.
--
-- Run it like the first file.
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

SELECT set_config('check_function_bodies', 'off', true); -- they may name "<here>", until pin_functions() runs

-- The view of holders. A role needs no right on the tables to read it, only SELECT on the view and USAGE
-- on the schema. security_barrier keeps a cheap function of the reader
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
CREATE FUNCTION by_index() RETURNS boolean LANGUAGE plpgsql STABLE COST 1000 AS 'BEGIN RETURN false; END';

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
    SET in_use = greatest(l.in_use - freed, 0), version = "<here>".next_version(l.version),
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
           EXISTS (SELECT FROM "<here>".lock_permits AS p WHERE p.name = lock AND (p.expires_at <= pg_catalog.clock_timestamp() OR "<here>".by_index()))
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
    SET in_use = l.capacity, version = "<here>".next_version(l.version),
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
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$ -- see by_index()
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
              AND NOT EXISTS (SELECT FROM "<here>".queue(d.name, d.ticket));
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
                      WHERE v.name = d.name AND v.state = 'queued' AND v.ticket > d.ticket AND v.ticket < my_ticket) AS w) AS q
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
                that.holder := NULL;
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
            UPDATE "<here>".distributed_locks AS d SET version = "<here>".next_version(d.version) WHERE d.name = ANY (lock_names);
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
            SET token = newest, version = "<here>".next_version(d.version),
                ticket = CASE
                    WHEN d.name = ANY (early) THEN d.ticket
                    WHEN queued THEN my_ticket
                    WHEN d.name = ANY (skipped) THEN coalesce((
                        SELECT min(w.ticket) FROM "<here>".queue(d.name, d.ticket) AS w), d.ticket)
                    ELSE d.ticket END,
                in_use = CASE WHEN shared THEN d.in_use + weights[i] WHEN permits[i] > 0 THEN 0 END,
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

REVOKE USAGE ON TYPE locks_held FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';
