-- Tells of the names $1 which are held, and not by the request $2 of whoever asks. $3 tickets, as
-- in acquire.sql; of them one stands for all if they are the same.
--
-- Returns name, token, holder, what remains of the grant in microseconds, how many wait with a
-- smaller ticket, and whether the ticket is void: what acquire.sql says of a lock that is
-- busy, at a fraction of its cost. It says nothing of a lock that could be granted.
SELECT l.name, l.token, l.holder,
       greatest((extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint, 1),
       (SELECT count(*) FROM pglock.lock_waiters AS w
        WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < coalesce(a.ticket, ($3::bigint[])[1])
          AND w.expires_at > clock_timestamp()),
       l.ticket >= coalesce(a.ticket, ($3::bigint[])[1])
FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) AS a (name, request, ticket)
JOIN pglock.distributed_locks AS l ON l.name = a.name
WHERE l.expires_at > clock_timestamp() AND l.request IS DISTINCT FROM a.request::uuid
