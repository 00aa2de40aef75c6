-- Reads the next 500 rows after the name $1 in the order of the primary key, and returns those that
-- match all conditions:
--
--   $2  held locks only
--   $3  the prefix of the name, or ''
--   $4  a pattern of LIKE for the name, or ''
--   $5  the holder, or ''
--   $6  labels, jsonb: all of them must match
--
-- Of a lock with permits, one grant must match the last two.
--
-- row.sql follows, which says what is returned. A step costs the same however many rows there are. 500 is a
-- constant, so that the planner walks the index instead of sorting the table. The snapshot ends with the
-- statement.
WITH read AS MATERIALIZED (
    SELECT l.*, clock_timestamp() AS read_at
    FROM pglock.distributed_locks AS l
    WHERE l.name > $1::text
    ORDER BY l.name
    LIMIT 500
), matching AS MATERIALIZED (
    SELECT s.*
    FROM read AS s
    WHERE starts_with(s.name, $3::text)
      AND ($4::text = '' OR s.name LIKE $4::text)
      AND ((s.holder IS NOT NULL AND s.expires_at > s.read_at OR NOT $2::boolean)
               AND ($5::text = '' OR s.holder = $5::text)
               AND s.labels @> $6::text::jsonb
           OR s.capacity IS NOT NULL AND EXISTS (
               SELECT FROM pglock.lock_permits AS p
               WHERE p.name = s.name AND p.holder IS NOT NULL AND p.expires_at > s.read_at
                 AND ($5::text = '' OR p.holder = $5::text)
                 AND p.labels @> $6::text::jsonb))
), step AS MATERIALIZED (
    SELECT p.seen, p.last, s.*
    FROM (SELECT count(*) AS seen, coalesce(max(r.name), '')::text AS last FROM read AS r) AS p
    LEFT JOIN matching AS s ON true
)
