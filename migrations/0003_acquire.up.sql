-- Acquiring: acquire_slots grants a lock of any kind, and several at once.
--
-- The row of a name in distributed_locks is the gate of its permits, of which a readers-writer lock
-- has 2^30: see docs/reference/protocol.md. in_use is the sum of the weights in lock_permits, and
-- request is that of the last grant that was exclusive or was released. A grant moves between the
-- gate and lock_permits, so a statement that ends or renews a grant looks at both.
--
-- Why it is safe:
-- * One at a time. Acquire and release lock the gate first. Each statement of a function has a
--   snapshot of its own, so the statements after the lock see what the previous holder of the gate
--   has committed. One statement could not do both: it would go on with the snapshot of its start.
-- * All or nothing. All rows are locked before they are judged, and changed in one transaction.
-- * Losing is free. An acquire that can't succeed finds that out before it locks anything.
-- * One row of a new name. The primary key decides; a stalled insert meets the row of the grant
--   that overtook it, and judges that. A name that was pruned meanwhile is tried again, or busy
--   without permits.
-- * No waiting. A lock with one holder whose row is locked is busy. A gate with permits is locked
--   until a commit only, for which an acquire waits for a quarter of a second at most
--   (lock_timeout), as for another insert of a new name. The exception is a guard of an exclusive
--   grant, which may last. So a statement waits FOR NO KEY UPDATE, which a guard does not delay,
--   and takes FOR UPDATE, with which it meets the guard, only with SKIP LOCKED. There is no
--   advisory lock, since any role could hold one.
-- * A permit that a guarded transaction uses counts until that transaction ends, whether it has
--   expired or was released: its row is locked, and SKIP LOCKED leaves it alone.
-- * No deadlock. Rows are locked and inserted in the order of names, and the gate before permits,
--   but for release_permit.sql, which says why it may, and for an acquire that looks whether an
--   expired permit can be freed. Only the end of that grant, which comes late, holds the gate and
--   waits for the permit, until one of both gives up.
-- * Token order. The token is drawn while all rows are locked, and is above that of each.
-- * Repeating it is safe. A request whose grant is live gets that grant again, and has one permit
--   of a name at most (the unique index). After that grant has ended, a delayed attempt can't win
--   it back while the row has its request, not even if a minimum hold keeps the released row from
--   expiring. Later it is a new grant, which the client revokes when it gave up.
-- * A recognized grant is durable. With a synchronous standby, the commit of the first attempt may
--   have been cut off in its wait, so the grant may be on this server alone. The row changes again,
--   and the commit of that change follows the first one in the log. While the first attempt still
--   waits for the standby, its row is locked, which looks busy.

SELECT set_config('check_function_bodies', 'off', true);

-- Is false, and looks dear to the planner, so a statement for one name that has it beside another
-- condition finds its row by the index, however small the table is. To judge a hundred rows instead
-- took two fifths of the server's time for a pair of acquire and release. Functions with many
-- statements have settings for that. And where an array's elements, or rows, are joined with a table,
-- the look is LATERAL or a sub-select, with OFFSET 0: a plan that was made while the table was small
-- could otherwise read all of it, once for all elements.
CREATE FUNCTION by_index() RETURNS boolean LANGUAGE plpgsql STABLE COST 1000 AS 'BEGIN RETURN false; END';

-- Deletes expired permits that no guarded transaction uses, and takes their weights off in_use, but no
-- more than are in use: a role may have inserted rows of its own. The caller has locked the gate.
CREATE FUNCTION free_expired_permits(lock text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    freed bigint;
BEGIN
    WITH gone AS (
        DELETE FROM "<here>".lock_permits AS p
        WHERE p.ctid = ANY (ARRAY(
            SELECT d.ctid FROM "<here>".lock_permits AS d
            WHERE d.name = lock AND d.expires_at <= pg_catalog.clock_timestamp() FOR UPDATE SKIP LOCKED))
        RETURNING p.weight
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

-- Inserts missing names, free and without a token, and returns whether it has inserted one.
CREATE FUNCTION create_free(lock_names text[], permits integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    INSERT INTO "<here>".distributed_locks (name, token, version, acquired_at, expires_at, capacity, in_use, room_since)
    SELECT a.name, 0, 1, clock_timestamp(), '-infinity',
           nullif(a.permits, 0), CASE WHEN a.permits > 0 THEN 0 END, CASE WHEN a.permits > 0 THEN clock_timestamp() END
    FROM unnest(lock_names, permits) AS a (name, permits)
    WHERE NOT EXISTS (SELECT FROM "<here>".distributed_locks AS l WHERE l.name = a.name OFFSET 0)
    ORDER BY a.name COLLATE "C"
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Fails unless there are 1 to 128 names, and as many permits and weights, without nulls.
CREATE FUNCTION check_slots(lock_names text[], permits integer[], weights integer[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    n CONSTANT integer := cardinality(lock_names);
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
END
$$;

-- The verdict of judge_slot on a name, for a request.
CREATE TYPE slot AS (
    name     text,
    token    bigint, -- of the gate
    capacity integer, -- 0: one holder
    ours     boolean, -- the request has or had a grant; then only the next two columns are set
    our_token bigint,
    our_end  timestamptz, -- null if the grant was released
    fits     boolean, -- the name may be granted
    ahead    integer, -- waiters before this one
    silent   boolean, -- the first of them is skipped, and with it the others
    invalid  boolean, -- the ticket is used up
    ended    boolean, -- the last grant has expired
    expired  boolean, -- permits have, and without them there is room, for the request or for others
    blocking_token  bigint, -- of the grant in the way
    blocking_holder text,
    blocking_end    timestamptz -- null if none is: a row is locked, or others wait
);

-- The verdict of judge_slots on all names.
CREATE TYPE verdict AS (
    outcome  text, -- free, expired (as if free, once expired permits are freed), ours, or that of acquire_slots: busy, spent, kind
    name     text, -- that of acquire_slots, as are the next columns
    token    bigint,
    holder   text,
    until    timestamptz,
    ahead    integer,
    invalid  boolean,
    slots    slot[],
    dead     text[], -- names where expired permits would make the room
    opened   text[] -- names at which others may have room after the grant
);

-- Judges whether a request may be granted "wanted" permits of a name, 1 of a lock with one holder.
-- The other statements grant a part of what this grants, and TestFastPaths compares them; only
-- handoff.sql grants a lock that is held. Returns null without a row of the name.
--
-- A waiter is granted what it wants if there is room for it and for all who wait before it,
-- whichever of them comes first. If the head is silent, nothing is kept for it and for the others
-- before this one.
CREATE FUNCTION judge_slot(lock text, wanted integer, request_id uuid, my_ticket bigint) RETURNS slot
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s       "<here>".slot;
    gate    record; -- and those that wait before this one
    mine    record; -- permits of this request
    expired bigint; -- permits
BEGIN
    SELECT d.token, d.ticket, d.request, d.holder, d.expires_at, coalesce(d.capacity, 0) AS capacity,
           CASE WHEN d.expires_at > clock_timestamp() THEN 0 ELSE coalesce(d.capacity - d.in_use, 1) END AS room,
           q.ahead, q.wanted, q.head, "<here>".head_is_silent(d, q.died, q.keep_until) AS silent INTO gate
    FROM "<here>".distributed_locks AS d
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.lives) AS ahead, coalesce(sum(w.weight) FILTER (WHERE w.lives), 0) AS wanted,
               (array_agg(w.weight ORDER BY w.ticket) FILTER (WHERE w.lives))[1] AS head,
               max(w.keep_until) FILTER (WHERE w.lives) AS keep_until, max(w.expires_at) FILTER (WHERE NOT w.lives) AS died
        FROM (SELECT v.*, v.expires_at > clock_timestamp() AS lives FROM "<here>".lock_waiters AS v
              WHERE v.name = d.name AND v.state = 'queued' AND v.ticket > d.ticket AND v.ticket < my_ticket) AS w) AS q
    WHERE d.name = lock;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    s.name := lock; s.token := gate.token; s.capacity := gate.capacity;
    IF gate.capacity > 0 THEN
        SELECT p.token, p.holder, p.expires_at INTO mine FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.request = request_id;
    END IF;
    s.ours := gate.capacity > 0 AND FOUND OR coalesce(gate.request = request_id, false);
    IF s.ours THEN
        IF gate.capacity = 0 OR NOT FOUND THEN
            mine := gate;
        END IF;
        s.our_token := mine.token; s.our_end := CASE WHEN mine.holder IS NOT NULL THEN mine.expires_at END;
        RETURN s;
    END IF;

    s.ahead := gate.ahead;
    s.invalid := my_ticket BETWEEN 1 AND least(gate.ticket, 9223372036854775806);
    s.silent := gate.ahead > 0 AND gate.room >= gate.head AND gate.silent;
    s.ended := gate.holder IS NOT NULL;
    s.fits := gate.room >= wanted + CASE WHEN s.silent THEN 0 ELSE gate.wanted END;
    IF s.fits THEN
        RETURN s;
    END IF;

    s.blocking_token := gate.token; s.blocking_holder := gate.holder; s.blocking_end := gate.expires_at;
    IF gate.capacity > 0 THEN
        SELECT coalesce(sum(p.weight), 0) INTO expired FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.expires_at <= clock_timestamp();
        s.expired := expired > 0 AND gate.room + expired >= wanted; -- otherwise it loses by live ones, and changes nothing
        IF gate.expires_at <= clock_timestamp() AND gate.room + expired < wanted THEN -- otherwise the end of a guarded transaction makes the room
            SELECT p.token, p.holder, p.expires_at INTO s.blocking_token, s.blocking_holder, s.blocking_end FROM "<here>".lock_permits AS p
            WHERE p.name = lock AND p.expires_at > clock_timestamp() ORDER BY p.expires_at, p.token LIMIT 1;
        END IF;
    END IF;
    IF (s.blocking_end > clock_timestamp()) IS NOT TRUE THEN
        s.blocking_token := gate.token; s.blocking_holder := NULL; s.blocking_end := NULL;
    END IF;
    RETURN s;
END
$$;

-- Changes the number of permits of a ticket, or keeps it from being skipped, unless its row is locked.
CREATE FUNCTION change_ticket(lock text, my_ticket bigint, wanted integer, keep timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE "<here>".lock_waiters AS w SET weight = coalesce(wanted, w.weight), keep_until = coalesce(keep, w.keep_until)
    WHERE w.ctid = ANY (ARRAY(
        SELECT v.ctid FROM "<here>".lock_waiters AS v
        WHERE v.name = lock AND v.ticket = my_ticket AND (v.weight <> wanted OR keep IS NOT NULL) FOR UPDATE SKIP LOCKED));
END
$$;

-- Locks the rows of the names in their order, and returns null, or the outcome and the name that could not be locked:
-- busy, or again if a name with permits was pruned meanwhile.
CREATE FUNCTION lock_gates(lock_names text[], permits integer[], OUT outcome text, OUT name text)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    FOR i IN 1..cardinality(lock_names) LOOP
        PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN FOUND;
        name := lock_names[i];
        IF permits[i] > 0 THEN -- in use for a moment, or guarded, perhaps for long
            PERFORM set_config('lock_timeout', '250ms', true);
            PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR NO KEY UPDATE;
            IF NOT FOUND THEN
                outcome := 'again';
                RETURN;
            END IF;
            PERFORM FROM "<here>".distributed_locks AS d WHERE d.name = lock_names[i] FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN FOUND;
        END IF;
        outcome := 'busy';
        RETURN;
    END LOOP;
END
$$;

-- Grants the names that judge_slot has judged, whose rows are locked, with one token.
--
-- One that is granted before others that wait leaves the queue, where these keep their places. Otherwise the tickets
-- before this one are used up, and those of a silent head and of the dead before it.
CREATE FUNCTION grant_slots(
    slots slot[], weights integer[], request_id uuid, who text, tags jsonb, us bigint, my_ticket bigint,
    OUT token bigint, OUT until timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    queued CONSTANT boolean := my_ticket BETWEEN 1 AND 9223372036854775806;
    began  timestamptz;
    newest bigint; -- token of the gate
    used   bigint; -- the last ticket that is used up; null: as before
    s      "<here>".slot;
    shared boolean; -- with others
    early  boolean; -- others keep their places before this one
BEGIN
    FOREACH s IN ARRAY slots LOOP
        newest := greatest(newest, s.token);
    END LOOP;
    token := greatest("<here>".next_fencing_token(), newest + 1);
    began := clock_timestamp();
    until := began + us * interval '1 microsecond';
    FOR i IN 1..cardinality(slots) LOOP
        s := slots[i];
        shared := weights[i] < s.capacity;
        early := s.ahead > 0 AND NOT s.silent;
        used := CASE WHEN early THEN NULL WHEN queued THEN my_ticket END;
        IF s.silent AND NOT queued THEN
            SELECT min(w.ticket) INTO used FROM "<here>".distributed_locks AS d, "<here>".queue(d.name, d.ticket) AS w WHERE d.name = s.name;
        END IF;
        newest := grant_slots.token;
        IF shared THEN
            INSERT INTO "<here>".lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder, labels)
            VALUES (s.name, newest, weights[i], 1, began, until, request_id, who, tags);
            newest := greatest("<here>".next_fencing_token(), newest + 1);
        END IF;
        UPDATE "<here>".distributed_locks AS d
        SET token = newest, version = "<here>".next_version(d.version),
            ticket = coalesce(used, d.ticket),
            in_use = CASE WHEN shared THEN d.in_use + weights[i] ELSE d.in_use END,
            room_since = CASE WHEN s.capacity = 0 THEN d.room_since WHEN early THEN greatest(d.room_since, nullif(d.expires_at, '-infinity')) ELSE clock_timestamp() END,
            acquired_at = began, expires_at = CASE WHEN shared THEN '-infinity' ELSE grant_slots.until END, release_request = NULL,
            last_holder = coalesce(d.holder, d.last_holder), last_end = CASE WHEN d.holder IS NULL THEN d.last_end ELSE 'expired' END,
            ended_at = CASE WHEN d.holder IS NULL THEN d.ended_at ELSE nullif(d.expires_at, '-infinity') END,
            request = CASE WHEN shared THEN d.request ELSE request_id END,
            holder = CASE WHEN shared THEN NULL ELSE who END,
            labels = CASE WHEN shared THEN '{}' ELSE tags END
        WHERE d.name = s.name;
        IF queued AND early THEN -- its ticket would stay valid
            DELETE FROM "<here>".lock_waiters AS w
            WHERE w.ctid = ANY (ARRAY(SELECT v.ctid FROM "<here>".lock_waiters AS v WHERE v.name = s.name AND v.ticket = my_ticket FOR UPDATE SKIP LOCKED));
        END IF;
    END LOOP;
END
$$;

-- Notifies the waiters of names with permits for whom there is room.
CREATE FUNCTION wake_opened(lock_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM "<here>".wake_next(d.name, d.ticket, d.capacity - d.in_use)
    FROM "<here>".distributed_locks AS d WHERE d.name = ANY (lock_names) AND d.capacity > d.in_use AND d.holder IS NULL;
END
$$;

-- Judges all of the names, each by itself, because a statement that joins the unnested names would be planned anew at
-- each call, which takes longer than all the lookups of one name.
CREATE FUNCTION judge_slots(lock_names text[], permits integer[], weights integer[], request_id uuid, my_ticket bigint) RETURNS verdict
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v       "<here>".verdict;
    s       "<here>".slot;
    worst   "<here>".slot; -- of those that are blocked
    ours    integer := 0; -- names with a grant of this request
    live    integer := 0; -- of these, held
    blocked boolean := false; -- by something else than expired permits
BEGIN
    v.outcome := 'free'; v.name := lock_names[1]; v.token := 0; v.ahead := 0; v.invalid := false;
    v.slots := '{}'; v.dead := '{}'; v.opened := '{}';
    FOR i IN 1..cardinality(lock_names) LOOP
        s := "<here>".judge_slot(lock_names[i], weights[i], request_id, my_ticket);
        CONTINUE WHEN s.name IS NULL;
        IF s.capacity <> permits[i] THEN
            v.outcome := 'kind'; v.name := s.name; v.ahead := s.capacity;
            RETURN v;
        END IF;
        v.slots := v.slots || s;
        IF s.ours THEN
            ours := ours + 1;
            IF s.our_end > clock_timestamp() THEN
                live := live + 1; v.token := s.our_token; v.until := least(v.until, s.our_end);
            END IF;
            CONTINUE;
        END IF;
        v.ahead := greatest(v.ahead, s.ahead);
        v.invalid := v.invalid OR s.invalid;
        IF s.silent OR s.ended THEN -- not for those who watch: the commit would wait under the lock of NOTIFY
            v.opened := v.opened || s.name;
        END IF;
        CONTINUE WHEN s.fits;
        v.dead := v.dead || ARRAY(SELECT s.name WHERE s.expired);
        blocked := blocked OR s.expired IS NOT TRUE;
        IF worst.blocking_end IS NULL OR s.blocking_end > worst.blocking_end THEN
            worst := s;
        END IF;
    END LOOP;
    IF ours > 0 THEN
        v.outcome := CASE WHEN live < cardinality(lock_names) THEN 'spent' ELSE 'ours' END;
    ELSIF v.invalid OR blocked OR v.dead <> '{}' THEN
        v.outcome := CASE WHEN v.invalid OR blocked THEN 'busy' ELSE 'expired' END;
        v.name := coalesce(worst.name, v.name); v.token := coalesce(worst.blocking_token, 0);
        v.holder := worst.blocking_holder; v.until := worst.blocking_end;
    END IF;
    RETURN v;
END
$$;

-- Grants all of the distinct names to the holder "who" for "us" microseconds, with one token, or
-- nothing: weights[i] of the permits[i] of each name. A lock with one holder has 0 permits, and the
-- weight 1, because a null in an array is text to a role whose array_nulls is off. The caller has sorted the
-- names by their bytes, because of deadlocks, and left none twice, and my_ticket is the largest bigint without a ticket, and 0 to ignore the queue. If "notify",
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
-- The steps: judge_slots judges the names, and most losers end here. Then lock_gates locks the rows, the names are
-- judged again, and grant_slots grants. If expired permits would make the room, they are freed, and a third judgement follows.
CREATE FUNCTION acquire_slots(
    lock_names text[], permits integer[], weights integer[], request_id uuid, who text, tags jsonb, us bigint, my_ticket bigint, notify boolean,
    OUT outcome text, OUT name text, OUT token bigint, OUT holder text, OUT remaining bigint, OUT ahead integer, OUT invalid boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$ -- see by_index()
#variable_conflict use_column
DECLARE
    queued CONSTANT boolean := my_ticket BETWEEN 1 AND 9223372036854775806;
    first  CONSTANT boolean := pg_current_xact_id_if_assigned() IS NULL; -- in its transaction: see commit_lazily
    v      "<here>".verdict;
    freed  text[] := '{}'; -- names that had expired permits
BEGIN
    PERFORM "<here>".check_slots(lock_names, permits, weights);
    outcome := 'busy'; name := lock_names[1]; token := 0; remaining := 0; ahead := 0; invalid := false;
    IF queued AND my_ticket > coalesce(pg_sequence_last_value(('<here>' || '.fencing_tokens')::regclass), 0) THEN
        invalid := true; -- it was not drawn here: it is forged, or a failover has lost it
        RETURN;
    END IF;
    -- The ticket is perhaps one of this client for another number of permits.
    PERFORM "<here>".change_ticket(u.name, my_ticket, u.weight, NULL) FROM unnest(lock_names, weights) AS u (name, weight) WHERE queued;
    FOR pass IN 0..2 LOOP
        IF pass = 1 THEN
            PERFORM "<here>".create_free(lock_names, permits) WHERE cardinality(v.slots) < cardinality(lock_names);
            SELECT g.outcome, g.name INTO outcome, name FROM "<here>".lock_gates(lock_names, permits) AS g;
            IF outcome IS NOT NULL THEN
                PERFORM set_config('synchronous_commit', 'off', true) WHERE first; -- losing changes nothing
                SELECT d.token, d.holder INTO token, holder FROM "<here>".distributed_locks AS d WHERE d.name = acquire_slots.name;
                token := coalesce(token, 0);
                -- The head keeps its place.
                PERFORM "<here>".change_ticket(acquire_slots.name, my_ticket, NULL, clock_timestamp() + interval '1500 ms') WHERE ahead = 0;
                RETURN;
            END IF;
        END IF;
        v := "<here>".judge_slots(lock_names, permits, weights, request_id, my_ticket);
        ahead := v.ahead; invalid := v.invalid;
        IF v.outcome = 'expired' AND pass = 0 THEN -- are there any to free?
            PERFORM FROM "<here>".lock_permits AS p WHERE p.name = ANY (v.dead) AND p.expires_at <= clock_timestamp() LIMIT 1 FOR UPDATE SKIP LOCKED;
        END IF;
        IF v.outcome IN ('kind', 'spent', 'busy') OR v.outcome = 'expired' AND (pass = 0 AND NOT FOUND OR pass = 2) THEN
            outcome := CASE v.outcome WHEN 'expired' THEN 'busy' ELSE v.outcome END;
            name := v.name; token := v.token; holder := v.holder;
            remaining := CASE WHEN v.until IS NULL THEN 0 ELSE greatest((extract(epoch FROM v.until - clock_timestamp()) * 1000000)::bigint, 1) END;
            PERFORM "<here>".wake_opened(freed) WHERE notify AND freed <> '{}';
            RETURN;
        END IF;
        CONTINUE WHEN pass = 0;
        PERFORM "<here>".commit_durably();
        IF v.outcome = 'ours' THEN -- the commit of this change follows that of the grant in the log
            UPDATE "<here>".distributed_locks AS d SET version = "<here>".next_version(d.version) WHERE d.name = ANY (lock_names);
        ELSIF v.outcome = 'expired' THEN
            PERFORM "<here>".free_expired_permits(d) FROM unnest(v.dead) AS d;
            freed := v.dead;
            CONTINUE;
        ELSE
            SELECT g.token, g.until INTO v.token, v.until FROM "<here>".grant_slots(v.slots, weights, request_id, who, tags, us, my_ticket) AS g;
            PERFORM "<here>".wake_opened(freed || v.opened) WHERE notify AND freed || v.opened <> '{}';
        END IF;
        outcome := 'granted'; name := NULL; token := v.token; holder := NULL; ahead := 0; invalid := false;
        remaining := (extract(epoch FROM v.until - clock_timestamp()) * 1000000)::bigint;
        RETURN;
    END LOOP;
END
$$;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';
