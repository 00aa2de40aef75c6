-- Frees the name $1 if it is held by the request $2: the clean-up after an acquire
-- whose answer was never read. Whoever waits first is notified. Returns at most one row.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE pglock.distributed_locks AS l
SET holder = NULL, expires_at = '-infinity', released_at = clock_timestamp(), version = l.version + 1
FROM async
WHERE l.name = $1::text AND l.request = $2::text::uuid AND l.holder IS NOT NULL
RETURNING pglock.wake_next(l.name, l.ticket)
