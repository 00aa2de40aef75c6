-- The middle of list.sql and of survey.sql: of the rows in "read", those that match all conditions:
--
--   $2  held locks only
--   $3  the prefix of the name, or ''
--   $4  a pattern of LIKE for the name, or ''
--   $5  the holder, or ''
--   $6  labels, jsonb: all of them must match
--   $7  only those that somebody waits for, by "queues"
--   $8  only those that several can hold: semaphores and readers-writer locks
--   $9  only those of elections, whose last grant has a payload
--
-- Of a lock with permits, one grant must match the labels and the holder. After $12 others, $11 of them are returned in
-- the order $10: '' is that of names, 'waiters' has the longest queues first, 'held' the oldest grants, and
-- 'remaining' those that end first.
), shared AS MATERIALIZED (
    SELECT DISTINCT p.name
    FROM read AS r JOIN pglock.lock_permits AS p ON p.name = r.name
    WHERE r.capacity IS NOT NULL AND p.holder IS NOT NULL AND p.expires_at > r.read_at
      AND ($5::text = '' OR p.holder = $5::text)
      AND p.labels @> $6::text::jsonb
), matching AS NOT MATERIALIZED (
    SELECT s.*, coalesce(q.waiting, 0) AS waiting
    FROM read AS s
    LEFT JOIN queues AS q ON q.name = s.name
    LEFT JOIN shared AS h ON h.name = s.name
    WHERE starts_with(s.name, $3::text)
      AND ($4::text = '' OR s.name LIKE $4::text)
      AND (NOT $7::boolean OR q.waiting > 0)
      AND (NOT $8::boolean OR s.capacity IS NOT NULL)
      AND (NOT $9::boolean OR s.labels ? 'payload')
      AND ((s.holder IS NOT NULL AND s.expires_at > s.read_at OR NOT $2::boolean)
               AND ($5::text = '' OR s.holder = $5::text)
               AND s.labels @> $6::text::jsonb
           OR h.name IS NOT NULL)
), step AS MATERIALIZED (
    SELECT p.*, s.*
    FROM (SELECT count(*) AS seen, coalesce(max(r.name), '')::text AS last, (SELECT count(*) FROM matching) AS matching FROM read AS r) AS p
    LEFT JOIN (
        SELECT f.*, row_number() OVER () AS place
        FROM (
            SELECT m.* FROM matching AS m
            ORDER BY CASE $10::text WHEN 'waiters' THEN -m.waiting
                         WHEN 'held' THEN extract(epoch FROM m.acquired_at) WHEN 'remaining' THEN extract(epoch FROM nullif(m.expires_at, '-infinity')) END, m.name
            LIMIT $11::bigint OFFSET $12::bigint) AS f) AS s ON true
)
