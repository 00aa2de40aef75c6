-- Returns name and token of each of the grants ($1 names, $2 tokens) that is current and live. If a
-- renewal left out a live grant, another transaction has locked its row.
SELECT l.name, l.token
FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[])) AS w (name, token)
JOIN pglock.distributed_locks AS l ON l.name = w.name AND l.token = w.token
WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
