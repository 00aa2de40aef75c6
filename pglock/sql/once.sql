-- Returns the first $1 effects that have begun and have no outcome, the oldest first.
SELECT o.key, coalesce(o.token, 0) AS token, coalesce(o.holder, '') AS holder,
       o.created_at::timestamptz AS created_at, o.started_at::timestamptz AS started_at, o.running
FROM pglock.once_started AS o ORDER BY o.started_at, o.key LIMIT $1::bigint
