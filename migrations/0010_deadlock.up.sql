-- Deadlocks, as docs/reference/protocol.md describes them: calls that wait for a lock while their
-- context holds others are in a table, and the one that closes a cycle fails.
--
-- The search is the reduction of a resource graph, after R. C. Holt, "Some deadlock properties of
-- computer systems", 1972. Permits need that: a semaphore has other holders, so that one cycle is
-- not a deadlock yet.

SELECT set_config('check_function_bodies', 'off', true);

-- The row 0 is the gate: a call that begins to wait locks it, so that of two calls that close a
-- cycle together, the second one sees the first. The table is unlogged: calls write their rows
-- again.
CREATE UNLOGGED TABLE nested_waits (
    number     bigint      PRIMARY KEY, -- the youngest has the largest
    names      text[]      NOT NULL, -- that it waits for, together
    weights    integer[]   NOT NULL, -- of each: the permits that it needs, 1 of a lock with one holder
    holds      bigint[]    NOT NULL, -- the tokens of the leases that its context carries
    holders    text[]      NOT NULL, -- of each: under which name. A grant of another holder does not count
    ticket     bigint      NOT NULL, -- its ticket, or without one the largest number: it is behind all that have one; 0: it overtakes
    holder     text        NOT NULL,
    since      finite_time NOT NULL DEFAULT clock_timestamp(),
    expires_at finite_time NOT NULL,
    request    uuid        UNIQUE, -- so that a repetition after a lost answer is recognized
    -- A null in an array would make looks and snapshots of others fail. array_position refuses two dimensions.
    CHECK (number = 0 OR (request IS NOT NULL AND cardinality(names) BETWEEN 1 AND 128 AND array_position(names, NULL) IS NULL
                          AND cardinality(weights) = cardinality(names) AND 0 < ALL (weights) AND 1073741824 >= ALL (weights)
                          AND cardinality(holds) <= 1024 AND array_position(holds, NULL) IS NULL
                          AND cardinality(holders) = cardinality(holds) AND array_position(holders, NULL) IS NULL) IS TRUE)
);
COMMENT ON TABLE nested_waits IS 'pglock: the calls that wait for locks while they hold others';

ALTER TABLE nested_waits SET (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0),
    ALTER number SET STATISTICS 0, ALTER names SET STATISTICS 0, ALTER weights SET STATISTICS 0, ALTER holds SET STATISTICS 0,
    ALTER holders SET STATISTICS 0, ALTER ticket SET STATISTICS 0, ALTER holder SET STATISTICS 0, ALTER since SET STATISTICS 0,
    ALTER expires_at SET STATISTICS 0, ALTER request SET STATISTICS 0;

-- That a wait needs another one to end, at a name. The "source" of it is a grant that the other one holds, or its
-- place in the queue, and has a weight. A wait that is short of more than "room" is not granted.
CREATE TYPE wait_edge AS (
    waiter text, waiter_holder text, name text, room integer,
    source text, weight integer, granted boolean, blocker text, blocker_holder text
);

-- The steps of find_deadlock follow, and then itself. They are STABLE, so that all of them see one
-- snapshot: that of the statement that calls it.

-- Returns the names that a wait depends on: those that it waits for, and what they depend on.
-- "tokens" are those of the grants of these names, and of some that have ended. Returns nulls if there
-- is no such wait.
CREATE FUNCTION wait_names(wait bigint, OUT known text[], OUT tokens bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    more text[] := (SELECT n.names FROM "<here>".nested_waits AS n WHERE n.number = wait);
BEGIN
    IF more IS NULL THEN
        RETURN;
    END IF;
    LOOP
        known := more;
        tokens := ARRAY(
            SELECT l.token FROM "<here>".distributed_locks AS l WHERE l.name = ANY (known)
            UNION ALL
            SELECT p.token FROM "<here>".lock_permits AS p WHERE p.name = ANY (known));
        SELECT array_agg(DISTINCT u.name) INTO more
        FROM (
            SELECT unnest(known)
            UNION ALL
            SELECT unnest(n.names) FROM "<here>".nested_waits AS n WHERE n.holds && tokens
            UNION ALL
            SELECT o.name FROM "<here>".lock_waiters AS w CROSS JOIN LATERAL (SELECT v.name FROM "<here>".lock_waiters AS v WHERE v.client = w.client OFFSET 0) AS o
            WHERE w.name = ANY (known) AND strpos(w.client, '/') > 0
        ) AS u (name);
        EXIT WHEN more <@ known;
    END LOOP;
END
$$;

-- Returns what each wait at these names needs to end. A waiter that holds nothing can be a link of a
-- chain: one that waits for several names, or permits, or a reader or writer. One that waits for a
-- plain name can't, because the next one needs what it needs.
CREATE FUNCTION wait_edges(wait bigint, known text[], tokens bigint[]) RETURNS wait_edge[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        WITH waits AS MATERIALIZED (
            SELECT n.number::text AS id, n.holder, u.name, u.weight, n.holds, n.holders, cardinality(n.names) > 1 AS together,
                   CASE WHEN n.ticket BETWEEN 1 AND l.ticket THEN 9223372036854775807 ELSE n.ticket END AS ticket -- one that is used up
            FROM "<here>".nested_waits AS n CROSS JOIN unnest(n.names, n.weights) AS u (name, weight)
            LEFT JOIN LATERAL (SELECT l.* FROM "<here>".distributed_locks AS l WHERE l.name = u.name OFFSET 0) AS l ON true
            WHERE u.name = ANY (known) AND n.expires_at > clock_timestamp()
              AND (n.number = wait OR n.holds && tokens OR cardinality(n.names) > 1 OR l.capacity IS NOT NULL)
            UNION ALL
            SELECT 'ticket ' || w.ticket, w.holder, w.name, w.weight, '{}', '{}', strpos(w.client, '/') > 0, w.ticket
            FROM unnest(known) AS k (name) LEFT JOIN LATERAL (SELECT l.* FROM "<here>".distributed_locks AS l WHERE l.name = k.name OFFSET 0) AS l ON true
            CROSS JOIN LATERAL (SELECT q.* FROM "<here>".queue(k.name, coalesce(l.ticket, 0)) AS q OFFSET 0) AS w
            WHERE (l.capacity IS NOT NULL OR strpos(w.client, '/') > 0)
              AND NOT EXISTS (SELECT FROM "<here>".nested_waits AS n WHERE n.ticket = w.ticket AND n.expires_at > clock_timestamp())
        ), grants AS MATERIALIZED (
            SELECT l.name, l.token, l.holder, coalesce(l.capacity, 1) AS weight
            FROM "<here>".distributed_locks AS l
            WHERE l.name = ANY (known) AND l.expires_at > clock_timestamp()
            UNION ALL
            SELECT p.name, p.token, p.holder, p.weight
            FROM "<here>".lock_permits AS p
            WHERE p.name = ANY (known) AND p.expires_at > clock_timestamp()
        ), held AS MATERIALIZED (
            SELECT g.name, 'grant ' || g.token AS source, g.weight::integer, v.id, v.holder
            FROM (SELECT DISTINCT u.id, u.holder, h.* FROM waits AS u CROSS JOIN unnest(u.holds, u.holders) AS h (token, held_as)) AS v
            JOIN grants AS g ON g.token = v.token AND g.holder = v.held_as
        )
        SELECT array_agg(ROW(w.id, w.holder, w.name, coalesce(l.capacity, 1) - w.weight, b.source, b.weight, b.granted, b.id, b.holder)::"<here>".wait_edge)
        FROM waits AS w
        LEFT JOIN LATERAL (SELECT l.* FROM "<here>".distributed_locks AS l WHERE l.name = w.name OFFSET 0) AS l ON true
        JOIN (
            SELECT h.name, h.source, h.weight, true AS granted, h.id, h.holder, false AS together, 0::bigint AS ticket
            FROM held AS h
            UNION ALL
            SELECT v.name, v.id, v.weight::integer, false, v.id, v.holder, v.together, v.ticket
            FROM waits AS v
            WHERE v.ticket > 0
        ) AS b ON b.name = w.name AND (b.granted OR b.ticket < w.ticket AND (l.capacity IS NOT NULL OR b.together)));
END
$$;

-- Takes away the waits that will be granted, and returns what is stuck, and at which names; null if
-- the wait is not.
CREATE FUNCTION stuck_edges(wait bigint, edges wait_edge[]) RETURNS wait_edge[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    stuck text[];
    rest  "<here>".wait_edge[];
BEGIN
    LOOP
        SELECT array_agg(DISTINCT x.waiter) INTO stuck FROM unnest(edges) AS x;
        IF (wait::text = ANY (stuck)) IS NOT TRUE THEN
            RETURN NULL;
        END IF;
        rest := ARRAY(
            SELECT x
            FROM unnest(edges) AS x
            JOIN (SELECT u.waiter, u.name
                  FROM (SELECT DISTINCT y.waiter, y.name, y.room, y.source, y.weight FROM unnest(edges) AS y) AS u
                  GROUP BY u.waiter, u.name, u.room
                  HAVING sum(u.weight) > u.room) AS u ON u.waiter = x.waiter AND u.name = x.name
            WHERE x.blocker = ANY (stuck));
        EXIT WHEN cardinality(rest) = cardinality(edges);
        edges := rest;
    END LOOP;
    RETURN edges;
END
$$;

-- Returns the shortest cycle through the wait in words, if possible of what keeps each one waiting by
-- itself: one of several holders of permits does not. A wait behind a deadlock is in no cycle. Returns
-- null without a cycle, or if the wait is not the youngest of it.
CREATE FUNCTION cycle_words(wait bigint, edges wait_edge[]) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    tree  "<here>".wait_edge[]; -- breadth first
    level text[];
    seen  text[];
    e     "<here>".wait_edge;
    at    text := wait;
    words text;
BEGIN
    FOR needed IN 0..1 LOOP
        tree := '{}';
        seen := '{}';
        level := ARRAY[wait::text];
        WHILE cardinality(level) > 0 AND NOT wait::text = ANY (seen) LOOP
            tree := tree || ARRAY(
                SELECT DISTINCT ON (x.blocker) x FROM unnest(edges) AS x
                WHERE x.waiter = ANY (level) AND x.blocker <> ALL (seen) AND (x.weight > x.room OR needed = 1 AND x.blocker <> x.waiter)
                ORDER BY x.blocker, x.granted DESC);
            level := ARRAY(SELECT DISTINCT x.blocker FROM unnest(tree) AS x WHERE x.blocker <> ALL (seen));
            seen := seen || level;
        END LOOP;
        EXIT WHEN wait::text = ANY (seen);
    END LOOP;
    IF NOT wait::text = ANY (seen) THEN
        RETURN NULL;
    END IF;
    LOOP
        SELECT x.* INTO e FROM unnest(tree) AS x WHERE x.blocker = at;
        words := concat_ws('; ', format('%s waits for "%s"%s', e.waiter_holder, e.name,
            format(CASE WHEN e.granted THEN ', which %s holds' ELSE ', where %s is before it' END, e.blocker_holder)), words);
        at := e.waiter;
        IF at !~ '^ticket' AND at::bigint > wait THEN
            RETURN NULL; -- that one is younger
        END IF;
        EXIT WHEN at = wait::text;
    END LOOP;
    RETURN words;
END
$$;

CREATE FUNCTION find_deadlock(wait bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    d     record;
    edges "<here>".wait_edge[];
BEGIN
    d := "<here>".wait_names(wait);
    IF EXISTS (SELECT FROM "<here>".nested_waits AS n WHERE n.holds && d.tokens) THEN -- or all will be released
        edges := "<here>".stuck_edges(wait, "<here>".wait_edges(wait, d.known, d.tokens));
    END IF;
    RETURN CASE WHEN edges IS NOT NULL THEN "<here>".cycle_words(wait, edges) END;
END
$$;

-- See docs/reference/sql-protocol.md. holders is null if "holder" holds all of the grants.
CREATE FUNCTION nested_wait(
    names text[], weights integer[], holds bigint[], holder text, request uuid, ticket bigint DEFAULT NULL, holders text[] DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    until    timestamptz := clock_timestamp() + interval '3 s';
    mine     bigint;
    deadlock text;
BEGIN
    ticket := coalesce(nested_wait.ticket, 9223372036854775807);
    holders := coalesce(nested_wait.holders, array_fill(nested_wait.holder, ARRAY[cardinality(nested_wait.holds)]));
    -- The planner does not know how short the arrays are, and compiling a statement would take most of a second.
    PERFORM "<here>".commit_lazily(), set_config('jit', 'off', true), set_config('lock_timeout', '250ms', true);
    UPDATE "<here>".nested_waits AS n
    SET expires_at = until, ticket = nested_wait.ticket, holds = nested_wait.holds, holders = nested_wait.holders
    WHERE n.request = nested_wait.request
    RETURNING n.number INTO mine;
    IF NOT FOUND THEN
        PERFORM FROM "<here>".nested_waits AS n WHERE n.number = 0 FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO "<here>".nested_waits VALUES (0, '{}', '{}', '{}', '{}', 0, '', DEFAULT, '2261-12-31') ON CONFLICT DO NOTHING;
            PERFORM FROM "<here>".nested_waits AS n WHERE n.number = 0 FOR UPDATE;
        END IF;
        mine := "<here>".next_ticket();
        -- A number that was drawn under the gate is above all others, and a wait expires within 3 s. Other rows are forged.
        DELETE FROM "<here>".nested_waits AS n
        WHERE n.number <> 0 AND (n.expires_at <= clock_timestamp() OR n.expires_at > clock_timestamp() + interval '3 s' OR n.number >= mine);
        INSERT INTO "<here>".nested_waits AS n (number, names, weights, holds, holders, ticket, holder, expires_at, request)
        VALUES (mine, nested_wait.names, nested_wait.weights, nested_wait.holds, nested_wait.holders,
                nested_wait.ticket, nested_wait.holder, until, nested_wait.request)
        ON CONFLICT (request) DO UPDATE SET expires_at = excluded.expires_at -- the first try was slow, and not lost
        RETURNING n.number INTO mine;
    END IF;
    deadlock := "<here>".find_deadlock(mine);
    IF deadlock IS NOT NULL THEN
        PERFORM "<here>".end_nested_wait(nested_wait.request);
    END IF;
    RETURN deadlock;
END
$$;
COMMENT ON FUNCTION nested_wait(text[], integer[], bigint[], text, uuid, bigint, text[]) IS 'pglock: say that a call waits while it holds locks, and look for a deadlock';

CREATE FUNCTION end_nested_wait(request uuid) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM "<here>".nested_waits AS n WHERE n.request = $1 AND "<here>".commit_lazily()
$$;
COMMENT ON FUNCTION end_nested_wait(uuid) IS 'pglock: say that a call does not wait any more';

REVOKE EXECUTE ON FUNCTION nested_wait, end_nested_wait, find_deadlock, wait_names, wait_edges, stuck_edges, cycle_words FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 10';
