-- Calls acquire_slots for locks with one holder, each by itself: names $1, holders $2, requests $3,
-- labels $4, microseconds $5 and tickets $6, as in acquire_fast_batch.sql.
--
-- Returns the name, and what acquire_slots does. Names are locked and inserted in their order. A
-- busy row does not delay the others, but the wait for another insert of a new name can fail the
-- whole statement (lock_not_available).
SELECT g.name, g.outcome, g.token, g.holder, g.remaining, g.ahead, g.invalid
FROM (SELECT a.name, coalesce(a.holder, ($2::text[])[1]) AS holder, a.request::uuid AS request,
             coalesce(a.labels, ($4::text[])[1])::jsonb AS labels,
             coalesce(a.us, ($5::bigint[])[1]) AS us, coalesce(a.ticket, ($6::bigint[])[1]) AS ticket
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
          AS a (name, holder, request, labels, us, ticket)
      ORDER BY a.name COLLATE "C") AS a,
     LATERAL (SELECT a.name, s.outcome, s.token, s.holder, s.remaining, s.ahead, s.invalid
              FROM pglock.acquire_slots(ARRAY[a.name], ARRAY[0], ARRAY[1], a.request, a.holder, a.labels, a.us, a.ticket, false) AS s) AS g
