-- resolve deletes the record of an attempt, or makes it one of an effect that happened.
--
-- $1: the key. $2: the token of the attempt. $3: whether the effect happened. $4: the retention in
-- milliseconds. $5: the reason. Result: whether the record was changed, which is recorded.
--
-- The attempt is the one with the token, and is not running: a newer one has another token.
WITH stuck AS MATERIALIZED (
    SELECT k.key FROM pglock.once_keys AS k JOIN pglock.once_started AS s ON s.key = k.key
    WHERE k.key = $1::text AND k.token = $2::bigint AND NOT s.running
    FOR UPDATE OF k
), undone AS (
    DELETE FROM pglock.once_keys AS k USING stuck AS s WHERE NOT $3::boolean AND k.key = s.key AND k.state = 'started' AND k.token = $2::bigint RETURNING 1
), done AS (
    UPDATE pglock.once_keys AS k SET state = 'done', result = NULL, expires_at = clock_timestamp() + $4::float8 * interval '1 ms'
    FROM stuck AS s WHERE $3::boolean AND k.key = s.key AND k.state = 'started' AND k.token = $2::bigint RETURNING 1
)
SELECT CASE WHEN r.resolved THEN pglock.record_action(
           CASE WHEN $3::boolean THEN 'resolved: happened' ELSE 'resolved: did not happen' END, $1::text, $2::bigint, $5::text) ELSE false END
FROM (SELECT (SELECT count(*) FROM undone) + (SELECT count(*) FROM done) = 1 AS resolved) AS r
