-- Waits until no guarded transaction uses the revoked grant $2 of the name $1, and then notifies the
-- head of the queue if $3. Returns at most one row: whether a waiter was notified.
--
-- FOR UPDATE conflicts with the FOR KEY SHARE of a guard. After a second the statement fails
-- (lock_not_available). If the next holder has the lock, there is no row: it was granted after the
-- last guard.
WITH unused AS MATERIALIZED (
    SELECT l.name, l.ticket
    FROM pglock.distributed_locks AS l
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.revoked_token = $2::bigint
      AND set_config('synchronous_commit', 'off', true) = 'off' AND set_config('lock_timeout', '1s', true) = '1s'
    FOR UPDATE
)
SELECT CASE WHEN $3::boolean THEN pglock.wake_next(u.name, u.ticket) ELSE false END
FROM unused AS u
