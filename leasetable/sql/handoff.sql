-- Grants the name $1 to another caller of the process that holds it as $2, in place of
-- releasing it: request $3, holder $4, labels $5, for $6 microseconds. $7 is the client.
--
-- Returns one row if it was done: the new token, and what remains in microseconds. No row:
-- others wait, a guarded transaction still uses the grant, or it is not the current one
-- any more. Then it must be released.
--
-- Why it is safe: as take.sql, but for that the grant $2, which its holder gives up, makes
-- the row ours. Nobody's ticket is used up.
UPDATE pglock.distributed_locks AS l
SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = l.version + 1,
    acquired_at = clock_timestamp(),
    expires_at = clock_timestamp() + $6::bigint * interval '1 microsecond', released_at = NULL,
    request = $3::text::uuid, holder = $4::text, labels = $5::text::jsonb
WHERE l.ctid = (
    SELECT f.ctid
    FROM pglock.distributed_locks AS f
    WHERE f.name = $1::text AND f.token = $2::bigint AND f.holder IS NOT NULL
      AND NOT EXISTS (SELECT FROM pglock.lock_waiters AS w
                      WHERE w.name = $1::text AND w.client <> $7::text AND w.ticket > f.ticket
                        AND w.expires_at > clock_timestamp())
      AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')
    FOR UPDATE SKIP LOCKED)
RETURNING l.token, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
