-- Makes the tickets of the clients $1 for the names $2 expire $3 microseconds from now. Those of callers
-- that wait for several names are not skipped for $4 microseconds. Returns name, client and ticket of
-- each one found.
--
-- Rows are locked in the order of names, like those of the other statements about several rows:
-- they can't deadlock.
WITH mine AS MATERIALIZED (
    SELECT w.name, w.client, a.us
    FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) AS a (client, name, us)
    JOIN pglock.lock_waiters AS w ON w.name = a.name AND w.client = a.client
    WHERE set_config('synchronous_commit', 'off', true) = 'off'
    ORDER BY w.name COLLATE "C", w.client
    FOR UPDATE OF w
)
UPDATE pglock.lock_waiters AS w
SET expires_at = clock_timestamp() + m.us * interval '1 microsecond',
    keep_until = CASE WHEN position('/' IN w.client) > 0 THEN clock_timestamp() + $4::bigint * interval '1 microsecond' ELSE w.keep_until END
FROM mine AS m
WHERE w.name = m.name AND w.client = m.client
RETURNING w.name, w.client, w.ticket
