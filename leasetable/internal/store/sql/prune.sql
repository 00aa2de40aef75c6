-- Reads the next 1000 rows after the name $2 in the order of the primary key, and deletes those
-- that have been idle for $1 microseconds, counted from the release or the expiry of the last
-- grant.
--
-- Returns one row: the number of rows read, the last name among them, the number of deleted rows,
-- the name with the highest token among the rows read, and that token, except forged ones
-- (lift_fencing_tokens).
--
-- Why it is safe:
-- * Token order. The sequence is above the token of every deleted row (up_to). An earlier first
--   grant that stalled with an older token fails: see raise_pruned() and require_unpruned() in the
--   migration.
-- * Rows in use by others are skipped. Rows that were granted meanwhile are not idle.
-- * A step costs the same however many rows there are. 1000 is a constant, so that the planner
--   walks the index instead of sorting the table.
-- * FOR UPDATE conflicts with a guard that holds the last grant.
WITH step AS MATERIALIZED (
    SELECT l.ctid, l.name, l.token,
           l.expires_at <= clock_timestamp()
               AND greatest(l.acquired_at, l.expires_at, l.ended_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
               AND ((l.capacity > 0) IS NOT TRUE OR NOT EXISTS (
                   SELECT FROM pglock.lock_permits AS p
                   WHERE p.name = l.name AND p.expires_at > clock_timestamp() - $1::bigint * interval '1 microsecond')) AS idle
    FROM pglock.distributed_locks AS l
    WHERE l.name > $2::text
    ORDER BY l.name
    LIMIT 1000
), idle AS MATERIALIZED (
    SELECT l.ctid, l.token
    FROM pglock.distributed_locks AS l
    WHERE l.ctid = ANY (ARRAY(SELECT s.ctid FROM step AS s WHERE s.idle))
      AND l.expires_at <= clock_timestamp()
      AND greatest(l.acquired_at, l.expires_at, l.ended_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
    FOR UPDATE SKIP LOCKED
), mark AS MATERIALIZED (
    SELECT pglock.raise_pruned(max(i.token)) AS up_to
    FROM idle AS i
    HAVING count(*) > 0
), pruned AS (
    DELETE FROM pglock.distributed_locks AS l
    WHERE l.ctid = ANY (ARRAY(SELECT i.ctid FROM idle AS i, mark AS m WHERE i.token <= m.up_to))
    RETURNING l.name, l.capacity
), permits AS (
    DELETE FROM pglock.lock_permits AS p
    USING pruned AS g
    WHERE p.name = g.name AND g.capacity > 0
)
SELECT (SELECT count(*) FROM step), coalesce((SELECT max(s.name) FROM step AS s), ''), (SELECT count(*) FROM pruned),
       coalesce((SELECT s.name FROM step AS s WHERE s.token < 4611686018427387904 ORDER BY s.token DESC LIMIT 1), ''),
       coalesce((SELECT max(s.token) FROM step AS s WHERE s.token < 4611686018427387904), 0)
