-- Reads the names $1 that this request can't be granted: those that another request than $2 holds, and
-- those that are free, but kept for waiters before this one. $3 tickets, as in acquire_slots; an array of
-- one element stands for equal tickets.
--
-- Returns name, token, holder, remaining microseconds of the grant, the number of waiters with a
-- smaller ticket, and whether the ticket is invalid: the same as acquire_slots for a busy lock, at
-- a fraction of its cost. It returns no row for a lock that could be granted or has permits, nor
-- where the head may be silent.
SELECT l.name, l.token, l.holder,
       CASE WHEN l.expires_at > clock_timestamp()
            THEN greatest((extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint, 1) ELSE 0 END,
       q.ahead, coalesce(a.ticket, ($3::bigint[])[1]) BETWEEN 1 AND l.ticket
FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) AS a (name, request, ticket)
CROSS JOIN LATERAL (SELECT l.*, l AS gate FROM pglock.distributed_locks AS l WHERE l.name = a.name OFFSET 0) AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS ahead, max(w.keep_until) AS keep_until FROM pglock.queue(a.name, l.ticket) AS w
    WHERE w.ticket < coalesce(a.ticket, ($3::bigint[])[1])) AS q
WHERE l.request IS DISTINCT FROM a.request::uuid
  AND CASE WHEN l.capacity IS NULL
           THEN l.expires_at > clock_timestamp()
                OR l.holder IS NULL AND q.ahead > 0 AND NOT pglock.head_is_silent(l.gate, NULL, q.keep_until) END
