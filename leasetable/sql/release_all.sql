-- Frees the grants ($1 names, $2 tokens), as release.sql does one.
--
-- Returns name and token of each that was freed, and whether somebody was notified. Of those that are missing
-- release.sql finds out why: gone, changed since this statement began, or locked by somebody
-- else at the moment, for which the others do not wait. Rows are locked in the order of names. Waiters are looked for once,
-- not for each row, which is why woken is a query of its own.
WITH ours AS MATERIALIZED (
    SELECT l.ctid
    FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[])) AS a (name, token)
    JOIN pglock.distributed_locks AS l ON l.name = a.name AND l.token = a.token
    WHERE l.holder IS NOT NULL
    ORDER BY l.name COLLATE "C"
    FOR NO KEY UPDATE OF l SKIP LOCKED
), async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), freed AS (
    UPDATE pglock.distributed_locks AS l
    SET holder = NULL, expires_at = '-infinity', released_at = clock_timestamp(), version = l.version + 1
    FROM ours AS o, async
    WHERE l.ctid = o.ctid
    RETURNING l.name, l.token, l.ticket
), woken AS MATERIALIZED (
    SELECT pglock.wake_each(array_agg(f.name::text), array_agg(f.ticket)) AS names FROM freed AS f
)
SELECT f.name, f.token, f.name::text = ANY (w.names)
FROM woken AS w, freed AS f
