-- Returns the row of the name $1, what remains of its grant and how long ago it
-- was acquired, in microseconds.
SELECT token, version, coalesce(holder, ''), labels::text, acquired_at,
       CASE WHEN expires_at > clock_timestamp()
            THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       (extract(epoch FROM clock_timestamp() - acquired_at) * 1000000)::bigint
FROM pglock.distributed_locks
WHERE name = $1::text
