-- Grants the name $1 to holder $2 for $5 microseconds, if it has no row: $3 request, $4 labels, $6 ticket,
-- as in acquire_fast.sql. This is the fast path of names that are used once. In statements.go it is a part
-- of a statement for many names, "asked".
--
-- Returns one row if the grant is ours: name, token, remaining microseconds and true. Without a row,
-- acquire_slots handles all other cases, such as a caller with a ticket, and a name that others wait for. The
-- sub-select hides the ticket from the planner, which would plan for it at each call.
--
-- Why it is safe, beyond what 0003_acquire.up.sql says:
-- * One winner. The primary key decides. Of two inserts, the second one waits for the commit of the
--   first, for a quarter of a second at most, and grants nothing.
-- * Token order. The token is drawn before the row is there, so another grant of the name may overtake
--   it. The row of that grant is found, or was pruned meanwhile: see above_pruned.
-- * The clock is read before the insert, so the grant lasts no longer than was asked for.
-- * Repeating it is safe. A repeated request finds the row of its first attempt.
WITH asked (name, holder, request, labels, us, ticket) AS (
    SELECT $1::text, $2::text, $3::text::uuid, $4::text::jsonb, $5::bigint, (SELECT $6::bigint)
), created (name, token, remaining) AS (
    INSERT INTO pglock.distributed_locks AS l (name, token, version, acquired_at, expires_at, request, holder, labels)
    SELECT a.name, pglock.next_fencing_token(), 1, clock_timestamp(), clock_timestamp() + a.us * interval '1 microsecond', a.request, a.holder, a.labels
    FROM asked AS a
    WHERE a.ticket NOT BETWEEN 1 AND 9223372036854775806
      AND NOT EXISTS (SELECT FROM pglock.distributed_locks AS d WHERE d.name = a.name)
      AND NOT EXISTS (SELECT FROM pglock.queue(a.name, 0) AS w WHERE w.ticket < a.ticket)
      AND (SELECT pglock.commit_durably() AND set_config('lock_timeout', '250ms', true) = '250ms')
    ORDER BY a.name COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING l.name::text, l.token, (date_part('epoch', l.expires_at - clock_timestamp()) * 1000000)::bigint
)
SELECT c.name, c.token, c.remaining, true FROM created AS c WHERE (SELECT pglock.above_pruned(min(m.token)) FROM created AS m)
