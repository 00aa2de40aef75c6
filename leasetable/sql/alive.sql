-- Tells which of the grants ($1 names, $2 tokens) are current and have not ended: name
-- and token of each. A grant that a renewal left out and that is alive is locked by
-- somebody else at the moment.
SELECT l.name, l.token
FROM pglock.distributed_locks AS l
JOIN unnest($1::text[], $2::bigint[]) AS w (name, token)
  ON w.name = l.name AND w.token = l.token
WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
