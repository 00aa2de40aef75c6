-- Frees the grant $2 of the name $1. The row stays, with its token and version.
--
-- Returns one row: the outcome.
--   released  it was the current grant; or this had been done already (a repeated
--             request whose first answer was lost)
--   ended     its time was over, though nobody had taken it; it is free now
--   gone      it is not the current grant any more
--
-- The commit is not awaited: a crash that loses it costs the rest of the lease,
-- and the pair of acquire and release gets a third faster. Whoever acquires next
-- waits for its own commit, and this one is before it in the log.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), ours AS MATERIALIZED (
    SELECT l.holder IS NOT NULL AS held, l.expires_at > clock_timestamp() AS live
    FROM pglock.distributed_locks AS l, async
    WHERE l.name = $1::text AND l.token = $2::bigint
    FOR NO KEY UPDATE OF l
), freed AS (
    UPDATE pglock.distributed_locks AS l
    SET holder = NULL, expires_at = '-infinity', version = l.version + 1
    FROM ours
    WHERE l.name = $1::text AND l.token = $2::bigint AND ours.held
    RETURNING l.version
)
SELECT CASE
           WHEN o.held IS NULL THEN 'gone'
           WHEN o.held AND NOT o.live THEN 'ended'
           ELSE 'released'
       END,
       (SELECT version FROM freed)
FROM (SELECT) AS one
LEFT JOIN ours AS o ON true
