-- Revokes the grant $2 of the name $1 for the reason $3: the row is free, as after a release, and
-- keeps the reason for the old holder. Notifies the channel $4, which clients that hold leases may
-- listen on, of the token if $5.
--
-- Returns one row if the name has one: the token of its last grant, whether this statement revoked
-- the grant, whether an earlier one did, and whether the name has permits. Then the grant may be in
-- lock_permits, and release_permits() revokes it.
--
-- Why it is safe:
-- * Only this grant. Name and token must both match, and the grant must not have ended.
-- * A renewal that begins after this commit finds no live grant, and neither does a guard whose snapshot
--   is newer. A guarded transaction in progress holds the row with FOR KEY SHARE, which does not delay
--   this update, and keeps the next grant away until it ends. await_guards.sql waits for these, and
--   stops guards with older snapshots.
-- * Repeating it is safe: the row says which grant was revoked.
-- * It must survive a crash, whatever synchronous_commit says here: the old holder would be the
--   current one again.
-- * It waits for a row lock of another transaction for a short time only.
WITH revoked AS (
    UPDATE pglock.distributed_locks AS l
    SET holder = NULL, expires_at = '-infinity', version = l.version % 9223372036854775807 + 1,
        last_holder = l.holder, last_end = 'revoked', ended_at = clock_timestamp(),
        revoked_token = l.token, revoked_reason = $3::text
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL
      AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')
      AND (current_setting('client_min_messages') <> 'error' OR set_config('client_min_messages', 'warning', true) = 'warning')
      AND set_config('lock_timeout', '250ms', true) = '250ms'
    RETURNING CASE WHEN $5::boolean THEN pg_notify($4::text, l.token::text) END
)
SELECT l.token, EXISTS (SELECT FROM revoked), l.revoked_token IS NOT DISTINCT FROM $2::bigint, l.capacity IS NOT NULL
FROM pglock.distributed_locks AS l
WHERE l.name = $1::text
