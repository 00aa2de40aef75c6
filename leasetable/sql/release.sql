-- Frees the grant $2 of the name $1. The row stays, with its token and version.
--
-- Returns one row, the new version, if the grant was the current one, ended or not.
-- No row: it was released before (a repeated request whose first answer was lost), or
-- is not the current grant any more.
--
-- The commit is not awaited: a crash that loses it costs the rest of the lease,
-- and the pair of acquire and release gets a third faster. Whoever acquires next
-- waits for its own commit, and this one is before it in the log. (The setting is
-- made in the condition, which is read for the one row that matches.)
UPDATE pglock.distributed_locks AS l
SET holder = NULL, expires_at = '-infinity', version = l.version + 1
WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL
  AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING l.version
