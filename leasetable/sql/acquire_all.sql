-- Grants all of the names $1 to holder $2 for $5 microseconds, with one token, if each of them was
-- released and nobody waits for one: the fast path of several names that have one holder each, for a
-- caller without a ticket.
--
--   $3  the request, $4 labels, $6 the ticket, as in acquire_fast.sql
--
-- Returns one row if the grants are ours: token and remaining microseconds. Without a row,
-- acquire_slots handles all other cases.
--
-- acquire_fast.sql says why it is safe, and:
-- * All or nothing. The UPDATE finds the rows by their names, not by their versions: since all of them are
--   locked, it changes the newest version of each, or none.
-- * Losing is free. Nothing is locked unless all look free.
-- * No deadlock. Rows are locked in the order of names, and none is waited for.
--
-- The sub-selects hide the number of the names from the planner, which would plan for it at each call.
WITH free AS MATERIALIZED (
    SELECT f.token
    FROM pglock.distributed_locks AS f
    WHERE f.name = ANY ((SELECT $1::text[])::text[]) AND f.holder IS NULL AND f.expires_at <= clock_timestamp()
      AND (f.capacity > 0) IS NOT TRUE AND (f.request <> $3::text::uuid) IS NOT FALSE
      AND cardinality($1::text[]) = (
          SELECT count(*) FROM pglock.distributed_locks AS e
          WHERE e.name = ANY ((SELECT $1::text[])::text[]) AND e.holder IS NULL AND e.expires_at <= clock_timestamp()
            AND NOT EXISTS (SELECT FROM pglock.queue(e.name, e.ticket) AS w WHERE w.ticket < $6::bigint))
    ORDER BY f.name COLLATE "C"
    FOR UPDATE SKIP LOCKED
), drawn AS MATERIALIZED (
    SELECT greatest(pglock.next_fencing_token(), max(f.token) + 1) AS token, clock_timestamp() AS now
    FROM free AS f
    HAVING count(*) = cardinality($1::text[]) AND pglock.commit_durably()
), granted AS (
    UPDATE pglock.distributed_locks AS l
    SET token = d.token, version = pglock.next_version(l.version), acquired_at = d.now,
        expires_at = d.now + $5::bigint * interval '1 microsecond', release_request = NULL,
        request = $3::text::uuid, holder = $2::text, labels = $4::text::jsonb
    FROM drawn AS d
    WHERE l.name = ANY ((SELECT $1::text[])::text[]) AND l.holder IS NULL
    RETURNING l.expires_at
)
SELECT d.token, (date_part('epoch', min(g.expires_at) - clock_timestamp()) * 1000000)::bigint
FROM drawn AS d, granted AS g
GROUP BY d.token
