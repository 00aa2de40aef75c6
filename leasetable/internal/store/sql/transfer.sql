-- Ends the grant $2 of the name $1, and grants the lock to a waiter: to the first one with the holder's
-- name $3, or to the first one of all if $3 is ''. The grant lasts for $4 microseconds, or until the
-- waiter confirms it by another attempt. The waiter's client is notified if $5.
--
-- Returns one row on success: the new token, the new version of the row, and whether the client was
-- notified. No row: there is no such waiter, a guarded transaction still uses the grant, or the grant
-- is not current. Then the lock must be released.
--
-- Why it is safe: as handoff.sql. The new grant is that of the waiter's request, so nobody else can
-- confirm it, and a repeated attempt finds it: see acquire_full.sql. The waiter's ticket is used up:
-- its row is deleted. If the waiter has left or died, the grant expires, and the queue goes on. Other
-- tickets are not affected, also if they are smaller.
WITH heir AS MATERIALIZED (
    SELECT w.client, w.request, w.holder
    FROM pglock.distributed_locks AS l
    JOIN pglock.lock_waiters AS w ON w.name = l.name
    WHERE l.name = $1::text AND w.ticket > l.ticket AND w.expires_at > clock_timestamp()
      AND w.request IS NOT NULL AND w.holder <> '' AND ($3::text = '' OR w.holder = $3::text)
    ORDER BY w.ticket
    LIMIT 1
), granted AS (
    UPDATE pglock.distributed_locks AS l
    SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = l.version % 9223372036854775807 + 1,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond', release_request = NULL,
        last_holder = l.holder, last_end = 'released', ended_at = clock_timestamp(),
        request = h.request, holder = h.holder, labels = '{}'
    FROM heir AS h
    WHERE l.ctid = (
        SELECT f.ctid
        FROM pglock.distributed_locks AS f
        WHERE f.name = $1::text AND f.token = $2::bigint AND f.holder IS NOT NULL
          AND (f.capacity > 0) IS NOT TRUE
          AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')
          AND (current_setting('client_min_messages') <> 'error' OR set_config('client_min_messages', 'warning', true) = 'warning')
        FOR UPDATE SKIP LOCKED)
    RETURNING l.token, l.version
), used AS (
    DELETE FROM pglock.lock_waiters AS w
    USING heir AS h, granted
    WHERE w.name = $1::text AND w.client = h.client
)
SELECT g.token, g.version, CASE WHEN $5::boolean THEN pg_notify(h.client, $1::text) IS NOT NULL ELSE false END
FROM granted AS g, heir AS h
