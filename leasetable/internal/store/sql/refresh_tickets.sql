-- Extends the tickets of the client $1 for the names $2 to $3 microseconds from now. Returns name
-- and ticket of each one found.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE pglock.lock_waiters AS w
SET expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
FROM async
WHERE w.client = $1::text AND w.name = ANY ($2::text[])
RETURNING w.name, w.ticket
