-- Draws a ticket for the client $2 in the queue for the name $1, good for $3 microseconds.
-- An earlier one of this client is void.
--
-- Returns one row: the ticket; how many others wait; whether the lock is free, and what
-- remains of its grant otherwise, in microseconds.
--
-- A holder that releases meanwhile may not see the ticket, and this statement not the
-- release. So whoever finds nobody before him asks again afterwards, and then too.
--
-- The commit is not awaited: a crash empties the queue anyway.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), joined AS (
    INSERT INTO pglock.lock_waiters AS w (name, client, expires_at)
    SELECT $1::text, $2::text, clock_timestamp() + $3::bigint * interval '1 microsecond'
    FROM async
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, expires_at = excluded.expires_at
    RETURNING w.ticket
)
SELECT j.ticket,
       (SELECT count(*) FROM pglock.lock_waiters AS w
        WHERE w.name = $1::text AND w.client <> $2::text AND w.ticket > coalesce(l.ticket, 0)
          AND w.expires_at > clock_timestamp()),
       coalesce(l.expires_at <= clock_timestamp(), true),
       CASE WHEN l.expires_at > clock_timestamp()
            THEN (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END
FROM joined AS j
LEFT JOIN pglock.distributed_locks AS l ON l.name = $1::text
