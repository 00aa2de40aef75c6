-- Renews the grant $2 of the name $1 for $3 microseconds, and makes $4 its holder: another process
-- goes on with it.
--
-- Returns one row if that was done: the remaining microseconds, the microseconds since the grant, the
-- request that was granted, the number of permits of the name (0 for a lock with one holder), and how
-- many of them the grant has. No row: the grant is gone, or its row is locked.
--
-- Why it is safe: as renew.sql. The token stays, so both processes can renew and release the grant
-- from then on.
WITH ours AS MATERIALIZED (
    SELECT l.name, l.token
    FROM pglock.distributed_locks AS l
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL
    FOR NO KEY UPDATE OF l SKIP LOCKED
), ours_shared AS MATERIALIZED (
    SELECT p.name, p.token
    FROM pglock.lock_permits AS p
    WHERE p.name = $1::text AND p.token = $2::bigint AND p.holder IS NOT NULL
    FOR NO KEY UPDATE OF p SKIP LOCKED
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END,
           CASE WHEN current_setting('client_min_messages') = 'error'
                THEN set_config('client_min_messages', 'warning', true) END
), adopted AS (
    UPDATE pglock.distributed_locks AS l
    SET version = l.version % 9223372036854775807 + 1, holder = $4::text,
        expires_at = greatest(l.expires_at, clock_timestamp() + $3::bigint * interval '1 microsecond')
    FROM ours AS o, durable
    WHERE l.name = o.name AND l.token = o.token AND l.expires_at > clock_timestamp()
    RETURNING l.expires_at, l.acquired_at, l.request, l.capacity, l.capacity AS weight
), adopted_shared AS (
    UPDATE pglock.lock_permits AS p
    SET version = p.version % 9223372036854775807 + 1, holder = $4::text,
        expires_at = greatest(p.expires_at, clock_timestamp() + $3::bigint * interval '1 microsecond')
    FROM ours_shared AS o, durable
    WHERE p.name = o.name AND p.token = o.token AND p.expires_at > clock_timestamp()
    RETURNING p.expires_at, p.acquired_at, p.request,
              (SELECT l.capacity FROM pglock.distributed_locks AS l WHERE l.name = $1::text) AS capacity, p.weight
)
SELECT (extract(epoch FROM a.expires_at - clock_timestamp()) * 1000000)::bigint,
       (extract(epoch FROM clock_timestamp() - a.acquired_at) * 1000000)::bigint,
       coalesce(a.request::text, ''), coalesce(a.capacity, 0), coalesce(a.weight, 0)
FROM (SELECT * FROM adopted UNION ALL SELECT * FROM adopted_shared) AS a
