-- Makes releases of the name $1 notify the channel $2, for $3 microseconds from now.
INSERT INTO pglock.lock_waiters AS w (name, client, ticket, state, expires_at)
SELECT $1::text, $2::text, 0, 'watching', clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE set_config('synchronous_commit', 'off', true) = 'off'
ON CONFLICT (name, client) DO UPDATE SET expires_at = excluded.expires_at
