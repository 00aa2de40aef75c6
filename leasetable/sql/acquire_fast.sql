-- Grants the name $1 to holder $2 for $5 microseconds, if its row exists and its last grant was
-- released. This is the fast path: the single-statement form for a caller that will likely succeed.
--
--   $3  the request: the same for all attempts of one acquire
--   $4  labels, jsonb
--   $6  the caller's ticket; the largest bigint without a ticket, 0 to ignore the queue
--
-- Returns one row if the grant is ours: token and remaining microseconds. Without a row, peek.sql
-- reads the holder, and acquire_slots handles all other cases, such as new names and expired
-- grants, whose end it records.
--
-- Why it is safe:
-- * One winner. The sub-select locks the row before the row is judged free.
-- * FOR UPDATE, not FOR NO KEY UPDATE: a guard holds the previous grant with FOR KEY SHARE. The
--   two must conflict.
-- * Token order. The token is drawn while the row is locked.
-- * No waiting. SKIP LOCKED: a row that a guarded transaction holds is busy.
-- * Losing is free. On a held lock nothing is locked and nothing written.
-- * Repeating it is safe. A request that won does not win again: see acquire_slots.
-- * Queue order. While a smaller valid ticket waits, acquire_slots decides whether it is skipped.
-- * One path to the row. The UPDATE finds the row version that the sub-select has locked. If that
--   version is newer than this statement, the UPDATE does not see it, and there is no row.
UPDATE pglock.distributed_locks AS l
SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = pglock.next_version(l.version),
    ticket = CASE WHEN $6::bigint < 9223372036854775807 THEN greatest(l.ticket, $6::bigint) ELSE l.ticket END,
    acquired_at = clock_timestamp(), expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond', release_request = NULL,
    request = $3::text::uuid, holder = $2::text, labels = $4::text::jsonb
WHERE l.ctid = (
    SELECT f.ctid
    FROM pglock.distributed_locks AS f
    WHERE f.name = $1::text AND f.holder IS NULL AND f.expires_at <= clock_timestamp()
      AND (f.capacity > 0) IS NOT TRUE AND (f.request <> $3::text::uuid) IS NOT FALSE
      AND NOT EXISTS (SELECT FROM pglock.queue($1::text, f.ticket) AS w WHERE w.ticket < $6::bigint)
      AND pglock.commit_durably()
    FOR UPDATE SKIP LOCKED)
RETURNING l.token, (date_part('epoch', l.expires_at - clock_timestamp()) * 1000000)::bigint
