-- Returns the row of the name $1, the remaining microseconds of its grant, and the microseconds
-- since it was acquired.
SELECT token, version, coalesce(holder, ''), labels::text, acquired_at,
       CASE WHEN expires_at > clock_timestamp()
            THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       (extract(epoch FROM clock_timestamp() - acquired_at) * 1000000)::bigint
FROM pglock.distributed_locks
WHERE name = $1::text
