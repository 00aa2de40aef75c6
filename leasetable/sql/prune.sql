-- Reads the rows of the pages $2 to $3 - 1 of the table, $4, and deletes those that have been idle for $1
-- microseconds, counted from the release or the expiry of the last grant.
--
-- Returns one row: the number of pages of the table, the number of deleted rows, the name with the
-- highest token among the rows read, and that token, except forged ones (evidence_bound).
--
-- Why it is safe:
-- * Token order. The sequence is above the token of every deleted row (up_to), and the next grant of such
--   a name draws from it while it holds the new row.
-- * Rows in use by others are skipped, and delay nothing. Rows that were granted meanwhile are not idle.
-- * A step costs the same however many rows there are, and all steps read each page once. In the order
--   of names, which has nothing to do with that of the pages, they would read as many pages as rows.
--   PostgreSQL 13 does not know a scan of some pages, and reads each possible row of a page (291 at most).
-- * A row that moves to a page that was read was written meanwhile, so it is not idle.
-- * FOR UPDATE conflicts with a guard that holds the last grant. A name stays if a guard holds one of
--   its released permits: the permit counts until that transaction ends.
-- * A name in whose queue a ticket is valid stays, as only its row tells whether the ticket is used up.
--   A real one is valid for less than a minute; a forged one keeps no row for longer.
-- * The row of a job with a next tick stays: the view schedules tells from it that no process runs
--   the job any more.
WITH step AS MATERIALIZED (
    SELECT l.ctid, l.name, l.token,
           l.expires_at <= clock_timestamp() AND NOT l.labels ? 'next'
               AND greatest(l.acquired_at, l.expires_at, l.ended_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
               AND ((l.capacity > 0) IS NOT TRUE OR NOT EXISTS (
                   SELECT FROM pglock.lock_permits AS p
                   WHERE p.name = l.name AND p.expires_at > clock_timestamp() - $1::bigint * interval '1 microsecond')) AS idle
    FROM (
        SELECT l.ctid, l.* FROM pglock.distributed_locks AS l
        WHERE l.ctid >= format('(%s,0)', $2::bigint)::tid AND l.ctid < format('(%s,0)', $3::bigint)::tid AND current_setting('server_version_num')::integer >= 140000
        UNION ALL
        SELECT l.ctid, l.* FROM pglock.distributed_locks AS l WHERE l.ctid = ANY (CASE WHEN current_setting('server_version_num')::integer < 140000
            THEN ARRAY(SELECT format('(%s,%s)', page, item)::tid FROM generate_series($2, $3 - 1) AS page, generate_series(1, 291) AS item) END)
    ) AS l
), idle AS MATERIALIZED (
    SELECT l.ctid, l.name, l.token, l.capacity
    FROM pglock.distributed_locks AS l
    WHERE l.ctid = ANY (ARRAY(SELECT s.ctid FROM step AS s WHERE s.idle)) AND l.expires_at <= clock_timestamp()
      AND greatest(l.acquired_at, l.expires_at, l.ended_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
    FOR UPDATE SKIP LOCKED
), permits AS MATERIALIZED (
    SELECT p.ctid, p.name, p.token FROM pglock.lock_permits AS p
    WHERE p.name = ANY (ARRAY(SELECT i.name FROM idle AS i WHERE i.capacity > 0)) FOR UPDATE SKIP LOCKED
), unused AS MATERIALIZED (
    SELECT i.ctid, i.token FROM idle AS i
    WHERE i.name NOT IN (
        SELECT u.name FROM pglock.lock_permits AS u
        WHERE u.name = ANY (ARRAY(SELECT i.name FROM idle AS i WHERE i.capacity > 0))
          AND (u.name, u.token) NOT IN (SELECT p.name, p.token FROM permits AS p)
        UNION ALL SELECT w.name FROM pglock.lock_waiters AS w
        WHERE w.name = ANY (ARRAY(SELECT i.name FROM idle AS i)) AND w.state = 'queued' AND w.expires_at > clock_timestamp() AND w.expires_at <= clock_timestamp() + interval '1 min')
), mark AS MATERIALIZED (
    SELECT pglock.raise_pruned(max(u.token)) AS up_to
    FROM unused AS u HAVING count(*) > 0
), pruned AS (
    DELETE FROM pglock.distributed_locks AS l
    WHERE l.ctid = ANY (ARRAY(SELECT u.ctid FROM unused AS u, mark AS m WHERE u.token <= m.up_to))
    RETURNING l.name
), freed AS (
    DELETE FROM pglock.lock_permits AS p
    WHERE p.ctid = ANY (ARRAY(SELECT q.ctid FROM permits AS q JOIN pruned AS g ON g.name = q.name))
)
SELECT pg_relation_size($4::text::regclass) / current_setting('block_size')::integer, (SELECT count(*) FROM pruned),
       coalesce((SELECT s.name FROM step AS s WHERE s.token < (SELECT pglock.evidence_bound()) ORDER BY s.token DESC LIMIT 1), ''),
       coalesce((SELECT max(s.token) FROM step AS s WHERE s.token < (SELECT pglock.evidence_bound())), 0)
