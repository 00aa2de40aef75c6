-- Changes of a grant: it is released, revoked, upgraded, or keeps a part of its permits. Also the
-- change of a semaphore's number of permits. The third file says why permits are safe.

SELECT set_config('check_function_bodies', 'off', true);

-- The holders. security_barrier keeps a cheap function of the reader from seeing the rows that the
-- view leaves out.
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

-- Frees expired permits, notifies the waiters for whom there is room now if "notify", and returns
-- whether it has notified one. A permit that a guarded transaction still uses counts as room,
-- because its end notifies nobody: the waiter that finds it in use looks often. The caller has
-- released "freed" permits, and changed the gate as if the head needed one permit. A head that
-- needs more has its time to come from now on, if this release has made the room for it.
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

-- Ends a grant of a lock of any kind, "how" is released or revoked, for the reason "why". Notifies
-- the waiters for whom there is room if "notify". Returns no row if the grant is not current, or
-- was released before: see release.sql and revoke_grant.sql.
CREATE FUNCTION release_permits(lock text, grant_token bigint, notify boolean, how text DEFAULT 'released', why text DEFAULT NULL) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$ -- see by_index()
#variable_conflict use_column
DECLARE
    gate   record;
    mine   record;
    weight integer := 0; -- of a grant that is gone, in in_use
    whole  boolean; -- the grant is exclusive
    room   integer;
BEGIN
    PERFORM set_config('lock_timeout', '250ms', true);
    PERFORM CASE how WHEN 'released' THEN "<here>".commit_lazily() ELSE "<here>".commit_durably() END;
    SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = release_permits.lock FOR NO KEY UPDATE;
    whole := coalesce(gate.token = grant_token AND gate.holder IS NOT NULL, false);
    IF whole THEN
        mine := gate;
    ELSE
        DELETE FROM "<here>".lock_permits AS p
        WHERE p.ctid = (
            SELECT f.ctid FROM "<here>".lock_permits AS f
            WHERE f.name = release_permits.lock AND f.token = grant_token AND f.holder IS NOT NULL FOR UPDATE SKIP LOCKED)
        RETURNING p.holder, p.request, p.weight INTO mine;
        weight := coalesce(mine.weight, 0);
        IF NOT FOUND THEN
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
            SET holder = NULL, expires_at = '-infinity', version = "<here>".next_version(p.version)
            WHERE p.name = release_permits.lock AND p.token = grant_token;
        END IF;
    END IF;
    UPDATE "<here>".distributed_locks AS l
    SET in_use = l.in_use - least(l.in_use, weight), version = "<here>".next_version(l.version),
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
--   changes once more under FOR UPDATE: then the guard fails, or reads the newest version. That is the gate
--   also for a permit, because the grant may have been in the gate when the snapshot was taken.
-- * It locks a permit before the gate. No statement that holds the gate waits for a permit that has no
--   holder. A guard that does, because it has read the permit before the revocation, and whose transaction
--   has locked the gate too, waits until lock_timeout ends this function, which may be called again. A
--   permit without a row was free at once.
CREATE FUNCTION await_guards(lock text, grant_token bigint, notify boolean) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM "<here>".commit_lazily(), set_config('lock_timeout', '1s', true);
    PERFORM FROM "<here>".lock_permits AS p WHERE p.name = lock AND p.token = grant_token AND p.holder IS NULL FOR UPDATE;
    IF FOUND THEN
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR UPDATE;
        PERFORM "<here>".free_expired_permits(lock);
    ELSE
        PERFORM FROM "<here>".distributed_locks AS l WHERE l.name = lock AND l.token = grant_token AND l.revoked_token = grant_token FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE "<here>".distributed_locks AS l SET version = "<here>".next_version(l.version) WHERE l.name = lock;
    END IF;
    RETURN QUERY SELECT notify AND "<here>".wake_next(lock, l.ticket, l.capacity - l.in_use) FROM "<here>".distributed_locks AS l WHERE l.name = lock;
END
$$;

-- Gives a part of a grant's permits back, so that it keeps "keep" of them, with the same token, and
-- notifies the waiters for whom there is room, if "notify". There is no time without a grant. A
-- guarded transaction of an exclusive grant keeps all others out until it ends: it has locked the
-- gate. One of another grant is waited for.
--
-- Returns one row if the grant is held: whether a waiter was notified. Repeating it is safe, and it
-- never adds permits.
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
    UPDATE "<here>".distributed_locks AS l SET version = "<here>".next_version(l.version) WHERE l.name = keep_permits.lock;
    IF keep < had THEN
        UPDATE "<here>".lock_permits AS p SET weight = keep, version = "<here>".next_version(p.version)
        WHERE p.name = keep_permits.lock AND p.token = grant_token;
        PERFORM "<here>".add_room(keep_permits.lock, had - keep);
    END IF;
    RETURN NEXT keep < had AND notify AND (
        SELECT "<here>".wake_next(l.name, l.ticket, l.capacity - l.in_use) FROM "<here>".distributed_locks AS l WHERE l.name = keep_permits.lock);
END
$$;

-- Turns the grant of a reader into that of a writer with a new token, if it is the only grant. Others
-- that wait can't be granted before this reader ends, so none of them loses its turn. The writer's grant
-- expires no earlier than the reader's would have, because its holder trusts that until the answer.
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
        UPDATE "<here>".distributed_locks AS l SET version = "<here>".next_version(l.version) WHERE l.name = upgrade_permits.lock;
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
            WHERE p.ctid = (SELECT q.ctid FROM "<here>".lock_permits AS q WHERE q.name = upgrade_permits.lock AND q.token = grant_token FOR UPDATE SKIP LOCKED)
            RETURNING p.expires_at INTO until;
            IF FOUND THEN
                UPDATE "<here>".distributed_locks AS l SET in_use = 0, last_holder = mine.holder, last_end = 'released', ended_at = clock_timestamp()
                WHERE l.name = upgrade_permits.lock;
                -- The gate is locked and empty by now, so this grants.
                SELECT g.outcome, g.token, g.holder, g.remaining INTO outcome, token, holder, remaining
                FROM "<here>".acquire_slots(ARRAY[upgrade_permits.lock], ARRAY[gate.capacity::integer], ARRAY[gate.capacity::integer],
                    request_id, who, tags, greatest(us, ceil(extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint), 0, false) AS g;
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
    LOOP
        IF "<here>".create_free(ARRAY[lock], ARRAY[permits]) THEN
            RETURN 0;
        END IF;
        SELECT * INTO gate FROM "<here>".distributed_locks AS l WHERE l.name = lock FOR NO KEY UPDATE;
        EXIT WHEN FOUND; -- otherwise it was pruned meanwhile
    END LOOP;
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
    SET capacity = permits, version = "<here>".next_version(l.version),
        room_since = CASE WHEN permits - used >= need AND gate.capacity - used < need THEN clock_timestamp() ELSE l.room_since END
    WHERE l.name = lock;
    IF notify THEN
        -- All waiters fail now, unless the number is the same.
        PERFORM "<here>".wake_next(lock, gate.ticket, CASE WHEN permits <> gate.capacity THEN 2147483647 END);
    END IF;
    RETURN gate.capacity;
END
$$;

-- What operators have done: the last 1000 actions, as the statements that did them recorded them.
CREATE TABLE operator_actions (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          finite_time NOT NULL,
    role        text        NOT NULL, -- that has logged in
    application text        NOT NULL, -- application_name of its session
    action      text        NOT NULL,
    name        lock_name   NOT NULL, -- of the lock, the key of the effect, or the job
    token       bigint,
    reason      text        NOT NULL
);
COMMENT ON TABLE operator_actions IS 'pglock: the last requests, revocations, resolved keys and triggered jobs, with who did them and why';

-- Records an action, unless this role has: a statement may be repeated. A user may call it, but neither
-- choose the role nor the time, nor change what is there. It waits for no other transaction, and returns true.
-- Rows are counted and not their numbers, which a transaction that is rolled back uses up too.
CREATE FUNCTION record_action(action text, name text, token bigint, reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    did record;
BEGIN
    SELECT session_user::text AS role, left(record_action.action, 64) AS action, record_action.name, record_action.token, left(coalesce(record_action.reason, ''), 512) AS reason INTO did;
    IF EXISTS (SELECT FROM "<here>".operator_actions AS a WHERE (a.role, a.action, a.name, a.token, a.reason) IS NOT DISTINCT FROM (did.role, did.action, did.name, did.token, did.reason)) THEN
        RETURN true;
    END IF;
    INSERT INTO "<here>".operator_actions (at, role, application, action, name, token, reason)
    VALUES (clock_timestamp(), did.role, current_setting('application_name'), did.action, did.name, did.token, did.reason);
    DELETE FROM "<here>".operator_actions AS a
    WHERE a.id = ANY (ARRAY(SELECT o.id FROM "<here>".operator_actions AS o ORDER BY o.id
                            LIMIT (SELECT greatest(count(*) - 1000, 0) FROM "<here>".operator_actions) FOR UPDATE SKIP LOCKED));
    RETURN true;
END
$$;

REVOKE EXECUTE ON FUNCTION record_action FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
