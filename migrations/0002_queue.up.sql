-- The wait queue of a name: who is notified, and the statements of waiters. The table lock_waiters says
-- what its rows mean.

SELECT set_config('check_function_bodies', 'off', true);

CREATE VIEW locks_waiting WITH (security_barrier) AS
SELECT w.name::text AS name, CASE w.state WHEN 'queued' THEN w.ticket END AS ticket, left(w.holder, 512) AS client, clock_timestamp() - w.since AS waited,
       l.capacity IS NULL OR w.weight >= l.capacity AS exclusive, CASE WHEN l.capacity < 1073741824 THEN w.weight END::integer AS permits
FROM lock_waiters AS w
LEFT JOIN distributed_locks AS l ON l.name = w.name
WHERE (w.state = 'queued' AND w.ticket > coalesce(l.ticket, 0) OR w.state = 'overflow') AND w.expires_at > clock_timestamp();

COMMENT ON VIEW locks_waiting IS 'pglock: the waiters of each name; the smallest ticket is the head of the queue';
COMMENT ON COLUMN locks_waiting.ticket IS 'null for one in the overflow list of a long queue';
COMMENT ON COLUMN locks_waiting.exclusive IS 'false for one that waits to be a reader, or for some of the permits of a semaphore';
COMMENT ON COLUMN locks_waiting.permits IS 'of a semaphore: how many of them the waiter needs; null for other locks';
COMMENT ON COLUMN locks_waiting.client IS 'the name of the waiter, as others see it when it holds the lock';

-- Returns the queue for a name: its valid tickets, of which the smallest is the head. "used_up" is the ticket in the
-- row of the name. The server inlines it, so it is a part of the statement that calls it, and sees what that sees.
CREATE FUNCTION queue(lock text, used_up bigint) RETURNS SETOF lock_waiters
LANGUAGE sql STABLE AS $$
SELECT w.* FROM "<here>".lock_waiters AS w WHERE w.name = lock AND w.state = 'queued' AND w.ticket > used_up AND w.expires_at > pg_catalog.clock_timestamp()
$$;

-- Reports whether the head of the queue could have been granted for one and a half seconds: since
-- there is room for it, as the row of the name says, or the row was made, and since the last one before it
-- died. A ticket that is kept (keep_until) is not silent; a real one is kept for less than a minute, and a forged
-- one not at all. The caller has checked that there is room for it now. The server inlines it.
CREATE FUNCTION head_is_silent(gate distributed_locks, died timestamptz, keep_until timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
SELECT keep_until NOT BETWEEN pg_catalog.clock_timestamp() AND pg_catalog.clock_timestamp() + interval '1 min'
   AND greatest(gate.expires_at, gate.room_since, CASE WHEN gate.capacity IS NULL THEN coalesce(gate.ended_at, gate.acquired_at) END, died)
       <= pg_catalog.clock_timestamp() - interval '1500 ms'
$$;

-- Notifies the waiters behind the ticket "used_up" for whom there is room, first come, first
-- served; the head alone if the name has one holder, and therefore no room. Returns whether a
-- waiter was notified. Clients that watch the lock are notified too. The payload is the name, or
-- what follows the slash of the client. The next one in the queue learns on its channel "_next"
-- that it should look when those that were notified may be dead; not while these have waited for
-- less than a second, since a new waiter looks by itself. A caller for several names looks often,
-- so the one behind it learns instead.
--
-- Each statement of a function has a snapshot of its own, so this one sees the tickets that were
-- drawn while the release waited for its turn. Without a waiter it sends no notification, because
-- NOTIFY holds a lock of the whole cluster until the commit is done.
CREATE FUNCTION wake_next(lock_name text, used_up bigint, room integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    w     record;
    woken boolean := false;
    since timestamptz; -- of the last one that was notified
BEGIN
    FOR w IN
        SELECT q.client, q.state, q.weight, q.since
        FROM "<here>".lock_waiters AS q
        WHERE q.name = lock_name AND (q.state = 'queued' AND q.ticket > used_up OR q.state = 'watching') AND q.expires_at > pg_catalog.clock_timestamp()
        ORDER BY q.ticket
    LOOP
        IF w.state = 'queued' THEN
            IF w.weight > room OR woken AND room IS NULL THEN
                room := room * 0; -- null, or nothing for those behind it
                CONTINUE WHEN pg_catalog.strpos(w.client, '/') > 0;
                PERFORM pg_catalog.pg_notify(w.client || '_next', lock_name) WHERE since < pg_catalog.clock_timestamp() - interval '1 s';
                EXIT;
            END IF;
            room := room - w.weight;
            woken := true;
            since := w.since;
        END IF;
        PERFORM pg_catalog.pg_notify(pg_catalog.split_part(w.client, '/', 1), coalesce(nullif(pg_catalog.split_part(w.client, '/', 2), ''), lock_name));
    END LOOP;
    RETURN woken;
END
$$;

-- The same for many names, each with one holder. Returns the names whose head was notified. It looks by name, since
-- the table may be full of dead rows of other names.
CREATE FUNCTION wake_each(lock_names text[], used_up bigint[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(
        SELECT l.name
        FROM ROWS FROM (pg_catalog.unnest(lock_names), pg_catalog.unnest(used_up)) AS l (name, used_up)
        WHERE CASE WHEN EXISTS (SELECT FROM "<here>".lock_waiters AS w WHERE w.name = l.name) THEN "<here>".wake_next(l.name, l.used_up, NULL) END);
END
$$;

-- Returns how many permits the head of the queue behind the ticket "used_up" needs; 1 without a waiter.
CREATE FUNCTION head_weight(lock text, used_up bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((
        SELECT w.weight FROM "<here>".queue(lock, used_up) AS w ORDER BY w.ticket LIMIT 1), 1);
END
$$;

-- Deletes the ticket $3 of the client $2 from the queues for the names $1; null stands for any ticket of that
-- client. If $4, it notifies the next waiters for each of the names that is free: the release may have notified the
-- client that leaves, and others may have waited behind it for room. Returns one row for each free name: whether a
-- waiter was notified.
--
-- Rows are locked in the order of names, like those of the other statements about several rows, so they can't
-- deadlock. The time after which a head is silent begins anew for the one behind the head (room_since), unless a lock
-- with one holder is held. The count of the deleted rows has them deleted before wake_next() looks for the next
-- waiter, which sees the earlier effects of its statement because it is volatile. The names are a condition of
-- each table, so that no plan reads it as a whole.
CREATE FUNCTION leave_queue(text[], text, bigint, boolean) RETURNS SETOF boolean
LANGUAGE sql VOLATILE AS $$
WITH mine AS MATERIALIZED (
    SELECT w.name
    FROM "<here>".lock_waiters AS w
    WHERE w.name = ANY ($1::text[]) AND w.client = $2::text
      AND (SELECT "<here>".commit_lazily() AND set_config('lock_timeout', '250ms', true) = '250ms')
    ORDER BY w.name COLLATE "C"
    FOR UPDATE
), gone AS (
    DELETE FROM "<here>".lock_waiters AS w
    USING mine AS m
    WHERE w.name = m.name AND w.name = ANY ($1::text[]) AND w.client = $2::text AND (w.ticket = $3::bigint OR $3::bigint IS NULL)
    RETURNING w.name, w.state, w.ticket
), head_left AS (
    UPDATE "<here>".distributed_locks AS l
    SET room_since = clock_timestamp(), version = "<here>".next_version(l.version)
    FROM gone AS g
    WHERE l.name = g.name AND l.name = ANY ($1::text[]) AND (l.capacity > 0 OR l.expires_at <= clock_timestamp()) AND g.state = 'queued' AND g.ticket > l.ticket
      AND NOT EXISTS (SELECT FROM "<here>".queue(l.name, l.ticket) AS w WHERE w.ticket < g.ticket)
      AND EXISTS (SELECT FROM "<here>".queue(l.name, g.ticket))
)
SELECT CASE WHEN $4::boolean THEN "<here>".wake_next(l.name, l.ticket, l.capacity - l.in_use) ELSE false END
FROM (SELECT count(*) FROM gone) AS g, "<here>".distributed_locks AS l
WHERE l.name = ANY ($1::text[]) AND l.expires_at <= clock_timestamp()
$$;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
