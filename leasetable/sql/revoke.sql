-- Releases the name $1 if the request $2 holds it: the clean-up after an acquire whose answer was
-- never read. Notifies the head of the queue if $3. Returns at most one row.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE pglock.distributed_locks AS l
SET holder = NULL, expires_at = '-infinity', version = l.version % 9223372036854775807 + 1,
    last_holder = l.holder, last_end = 'released', ended_at = clock_timestamp()
FROM async
WHERE l.name = $1::text AND l.request = $2::text::uuid AND l.holder IS NOT NULL
RETURNING CASE WHEN $3::boolean THEN pglock.wake_next(l.name, l.ticket) ELSE false END
