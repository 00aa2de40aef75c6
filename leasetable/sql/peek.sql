-- Reads the names $1 that are held by another request than $2. $3 tickets, as in acquire_slots;
-- an array of one element stands for equal tickets.
--
-- Returns name, token, holder, remaining microseconds of the grant, the number of waiters with a
-- smaller ticket, and whether the ticket is invalid: the same as acquire_slots for a busy lock,
-- at a fraction of its cost. It returns no row for a lock that could be granted.
SELECT l.name, l.token, l.holder,
       greatest((extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint, 1),
       (SELECT count(*) FROM pglock.lock_waiters AS w
        WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < coalesce(a.ticket, ($3::bigint[])[1])
          AND w.expires_at > clock_timestamp()),
       l.ticket >= coalesce(a.ticket, ($3::bigint[])[1])
FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) AS a (name, request, ticket)
JOIN pglock.distributed_locks AS l ON l.name = a.name
WHERE l.expires_at > clock_timestamp() AND l.request IS DISTINCT FROM a.request::uuid
