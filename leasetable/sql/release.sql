-- Releases the grant $2 of the name $1, and notifies the head of the queue if $4. The row stays,
-- with its token and version. It has no holder from now on, but the lock is not free until $3
-- microseconds after the grant: the head learns of that by its next attempt, and waits for it. With
-- $3 = 0 it is free at once. If the server's clock was set back since the grant, these microseconds
-- count from now, because the time of the grant lies in the future.
--
-- Returns one row if the grant was current, expired or not: whether a waiter was notified. No row:
-- it was released before (a repeated request whose first answer was lost), or it is not current any
-- more. The check for any waiter comes first, because the function costs more than the UPDATE.
--
-- It does not wait for its commit: a crash that loses it costs the rest of the lease, and a pair of
-- acquire and release gets a third faster. The next acquire waits for its own commit, which follows
-- this one in the log. The settings are made in the condition, which is evaluated for one row.
UPDATE pglock.distributed_locks AS l
SET holder = NULL,
    expires_at = CASE WHEN least(l.acquired_at, clock_timestamp()) + $3::bigint * interval '1 microsecond' > clock_timestamp()
                      THEN least(l.acquired_at, clock_timestamp()) + $3::bigint * interval '1 microsecond'
                      ELSE '-infinity' END,
    version = pglock.next_version(l.version), last_holder = l.holder, last_end = 'released', ended_at = clock_timestamp()
WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL
  AND pglock.commit_lazily() AND set_config('lock_timeout', '250ms', true) = '250ms'
RETURNING CASE WHEN $4::boolean AND EXISTS (SELECT FROM pglock.lock_waiters AS w WHERE w.name = $1::text)
               THEN pglock.wake_next(l.name, l.ticket, NULL) ELSE false END
