-- Grants each of the distinct names $1 to its holder $2 for $5 microseconds, if it is free: acquire_slots
-- for locks with one holder, each by itself.
--
--   $3  requests: the same for all attempts of one acquire
--   $4  labels, jsonb
--   $6  tickets; the largest bigint without a ticket, 0 to ignore the queue
--
-- For holders, labels, durations and tickets, an array of one element stands for equal values.
--
-- Returns the name, and what acquire_slots does. All statements lock and insert rows in the order of names. A busy row does not delay the others, but a new name waits a quarter of a second for
-- another insert of it, after which the whole statement fails (lock_not_available).
SELECT g.name, g.outcome, g.token, g.holder, g.remaining, g.ahead, g.invalid
FROM (SELECT a.name, coalesce(a.holder, ($2::text[])[1]) AS holder, a.request::uuid AS request,
             coalesce(a.labels, ($4::text[])[1])::jsonb AS labels,
             coalesce(a.us, ($5::bigint[])[1]) AS us, coalesce(a.ticket, ($6::bigint[])[1]) AS ticket
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
          AS a (name, holder, request, labels, us, ticket)
      ORDER BY a.name COLLATE "C") AS a,
     LATERAL (SELECT a.name, s.outcome, s.token, s.holder, s.remaining, s.ahead, s.invalid
              FROM pglock.acquire_slots(ARRAY[a.name], ARRAY[0], ARRAY[1], a.request, a.holder, a.labels, a.us, a.ticket, false) AS s) AS g
