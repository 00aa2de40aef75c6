-- Returns the row of the name $1, and what remains of its grant in microseconds.
SELECT token, version, coalesce(holder, ''), labels::text, acquired_at,
       CASE WHEN expires_at > clock_timestamp()
            THEN (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END
FROM pglock.distributed_locks
WHERE name = $1::text
