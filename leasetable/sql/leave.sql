-- Takes the ticket $3 of the client $2 out of the queue for the name $1. Where the lock is
-- free the next in the queue is notified: the release may have woken the one who leaves.
-- Returns one row: how many were notified.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), gone AS (
    DELETE FROM pglock.lock_waiters AS w
    USING async
    WHERE w.name = $1::text AND w.client = $2::text AND w.ticket = $3::bigint
)
SELECT count(pg_notify(n.client, $1::text))
FROM (SELECT w.client
      FROM pglock.distributed_locks AS l
      JOIN pglock.lock_waiters AS w ON w.name = l.name
      WHERE l.name = $1::text AND l.expires_at <= clock_timestamp()
        AND w.client <> $2::text AND w.ticket > l.ticket AND w.expires_at > clock_timestamp()
      ORDER BY w.ticket
      LIMIT 1) AS n
