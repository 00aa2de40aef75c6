-- prune deletes the expired ones of the next 1000 rows.
--
-- $1: the key after which they begin. Result: the number of rows read, the last key, and the number
-- of deleted rows.
--
-- It waits for no row lock. A row that a call claims meanwhile is not expired any more, which the
-- DELETE checks again.
WITH step AS MATERIALIZED (
    SELECT k.key, k.expires_at <= clock_timestamp() AS expired FROM pglock.once_keys AS k WHERE k.key > $1::text ORDER BY k.key LIMIT 1000
), expired AS MATERIALIZED (
    SELECT k.key FROM pglock.once_keys AS k
    WHERE k.key = ANY (ARRAY(SELECT s.key FROM step AS s WHERE s.expired)) AND k.expires_at <= clock_timestamp()
    FOR UPDATE SKIP LOCKED
), pruned AS (
    DELETE FROM pglock.once_keys AS k USING expired AS e WHERE k.key = e.key RETURNING 1
)
SELECT (SELECT count(*) FROM step), coalesce((SELECT max(s.key) FROM step AS s), ''), (SELECT count(*) FROM pruned)
