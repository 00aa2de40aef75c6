-- Returns the first $1 calls that wait while they hold locks, the oldest first, with the nanoseconds of their wait.
SELECT left(n.holder, 512) AS holder, n.names, n.holds, (extract(epoch FROM clock_timestamp() - n.since) * 1000000000)::bigint AS waited
FROM pglock.nested_waits AS n
WHERE n.number > 0 AND n.expires_at > clock_timestamp()
ORDER BY n.number
LIMIT $1::bigint
