-- Returns up to $2 names that nobody has held for $1 microseconds, counted from the
-- release, or from the end of a grant that was not released. Only rows whose token is
-- below $3, the highest when pruning began, are among them: lift_fencing_tokens() needs
-- the highest.
SELECT name
FROM pglock.distributed_locks
WHERE expires_at <= clock_timestamp()
  AND greatest(acquired_at, expires_at, released_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
  AND token < $3::bigint
LIMIT $2::bigint
