-- Returns up to $2 names that nobody has held for $1 microseconds, counted from the
-- grant (released) or from its end (expired). The row with the highest token is not
-- among them: lift_fencing_tokens() needs it.
SELECT name
FROM pglock.distributed_locks
WHERE expires_at <= clock_timestamp()
  AND greatest(acquired_at, expires_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
  AND token < (SELECT max(token) FROM pglock.distributed_locks)
LIMIT $2::bigint
