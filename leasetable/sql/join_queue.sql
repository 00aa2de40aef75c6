-- Draws a ticket for the client $2 in the queue for the name $1, valid for $3 microseconds. It
-- replaces an earlier one of this client. Its caller waits as the holder $4, for $5 microseconds so
-- far, for $6 permits.
--
-- Returns one row: the ticket, the number of other waiters, whether the lock is free, and otherwise
-- the remaining microseconds of its grant.
--
-- A concurrent release may not see the ticket, and this statement may not see the release. So a
-- head tries again afterwards.
--
-- It does not wait for its commit: a crash empties the queue anyway.
WITH async AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), joined AS (
    INSERT INTO pglock.lock_waiters AS w (name, client, expires_at, since, holder, weight)
    SELECT $1::text, $2::text, clock_timestamp() + $3::bigint * interval '1 microsecond',
           clock_timestamp() - $5::bigint * interval '1 microsecond', $4::text, $6::int
    FROM async
    ON CONFLICT (name, client) DO UPDATE
        SET ticket = excluded.ticket, expires_at = excluded.expires_at, since = excluded.since, holder = excluded.holder,
            weight = excluded.weight, keep_until = excluded.keep_until
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
