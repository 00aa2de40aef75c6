-- Tells which of the grants ($1 names, $2 tokens) are current and have not ended: name
-- and token of each. A grant that a renewal left out and that is alive is locked by
-- somebody else at the moment.
SELECT l.name, l.token
FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[])) AS w (name, token)
JOIN pglock.distributed_locks AS l ON l.name = w.name AND l.token = w.token
WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
