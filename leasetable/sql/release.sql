-- Frees the grant $2 of the name $1. The row stays, with its token and version.
--
-- Returns one row if the grant was the current one, ended or not: whether somebody was notified.
-- No row: it was released before (a repeated request whose first answer was lost), or
-- is not the current grant any more.
--
-- Whoever waits first in the queue is notified, if somebody waits. (Looking for anybody first spares
-- the function's cost, more than the UPDATE's, where nobody does.)
--
-- The commit is not awaited: a crash that loses it costs the rest of the lease,
-- and the pair of acquire and release gets a third faster. Whoever acquires next
-- waits for its own commit, and this one is before it in the log. Nor does it wait long
-- for somebody who has locked the row by hand. (The settings are made in the condition,
-- which is read for the one row that matches.)
UPDATE pglock.distributed_locks AS l
SET holder = NULL, expires_at = '-infinity', released_at = clock_timestamp(), version = l.version + 1
WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL
  AND set_config('synchronous_commit', 'off', true) = 'off' AND set_config('lock_timeout', '250ms', true) = '250ms'
RETURNING CASE WHEN EXISTS (SELECT FROM pglock.lock_waiters AS w WHERE w.name = $1::text)
               THEN pglock.wake_next(l.name, l.ticket) ELSE false END
