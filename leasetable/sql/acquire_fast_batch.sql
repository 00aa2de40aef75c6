-- Grants each of the distinct names $1 to its holder $2 for $5 microseconds, if its row exists and
-- its last grant was released: the batch form of acquire_fast.sql. $3 requests, $4 labels, $6
-- tickets. For all but names and requests, an array of one element stands for equal values.
--
-- Returns name, token and remaining microseconds for each grant. For the other names run peek.sql
-- and acquire_slots. acquire_fast.sql says why it is safe. LATERAL keeps the planner from
-- joining in another order, in which it would read the whole table.
WITH free AS MATERIALIZED (
    SELECT l.ctid, a.*
    FROM (SELECT a.name, coalesce(a.holder, ($2::text[])[1]) AS holder, a.request, coalesce(a.labels, ($4::text[])[1])::jsonb AS labels,
                 coalesce(a.us, ($5::bigint[])[1]) AS us, coalesce(a.ticket, ($6::bigint[])[1]) AS ticket
          FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]::uuid[]), (SELECT $4::text[]),
                      (SELECT $5::bigint[]), (SELECT $6::bigint[])) AS a (name, holder, request, labels, us, ticket)
          ORDER BY a.name COLLATE "C") AS a
    CROSS JOIN LATERAL (
        SELECT l.ctid FROM pglock.distributed_locks AS l
        WHERE l.name = a.name AND l.holder IS NULL AND l.expires_at <= clock_timestamp()
          AND (l.capacity > 0) IS NOT TRUE AND (l.request <> a.request) IS NOT FALSE
          AND NOT EXISTS (SELECT FROM pglock.queue(a.name, l.ticket) AS w WHERE w.ticket < a.ticket)
          AND (SELECT pglock.commit_durably())
        FOR UPDATE SKIP LOCKED) AS l
)
UPDATE pglock.distributed_locks AS l
SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = pglock.next_version(l.version),
    ticket = CASE WHEN f.ticket < 9223372036854775807 THEN greatest(l.ticket, f.ticket) ELSE l.ticket END,
    acquired_at = clock_timestamp(), expires_at = clock_timestamp() + f.us * interval '1 microsecond', release_request = NULL,
    request = f.request, holder = f.holder, labels = f.labels
FROM free AS f
WHERE l.ctid = f.ctid
RETURNING l.name, l.token, (date_part('epoch', l.expires_at - clock_timestamp()) * 1000000)::bigint
