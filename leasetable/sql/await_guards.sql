-- Waits until no guarded transaction uses the revoked grant $2 of the name $1, and then notifies the
-- head of the queue if $3. Returns at most one row: whether a waiter was notified.
--
-- * FOR UPDATE conflicts with the FOR KEY SHARE of a guard. After a second the statement fails
--   (lock_not_available). If the next holder has the lock, there is no row: it was granted after the
--   last guard.
-- * No guard passes after this commit, even if its snapshot is older than the revocation. Such a guard
--   locks the row version that it sees, and the server compares that lock with the later changes of
--   the row. revoke_grant.sql changes no key column, which FOR KEY SHARE does not conflict with. So the
--   row changes once more under FOR UPDATE: then the guard fails, or reads the newest version.
WITH unused AS MATERIALIZED (
    SELECT l.ctid
    FROM pglock.distributed_locks AS l
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.revoked_token = $2::bigint
      AND set_config('synchronous_commit', 'off', true) = 'off' AND set_config('lock_timeout', '1s', true) = '1s'
    FOR UPDATE
)
UPDATE pglock.distributed_locks AS l
SET version = l.version % 9223372036854775807 + 1
FROM unused AS u
WHERE l.ctid = u.ctid
RETURNING CASE WHEN $3::boolean THEN pglock.wake_next(l.name, l.ticket) ELSE false END
