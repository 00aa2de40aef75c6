-- Grants the name $1 to holder $2 for $5 microseconds, if its row is there and free: the
-- short form of acquire.sql, for a lone caller who will likely win.
--
--   $3  the request: one value for all attempts of one acquire
--   $4  labels, jsonb
--   $6  the caller's ticket; the largest bigint for a newcomer, 0 for whoever barges in
--
-- Returns one row if the grant is ours: token, and what remains of it in microseconds.
-- No row: look.sql tells who holds it, and acquire.sql all else; it grants new names.
--
-- Why it is safe:
-- * One winner. The sub-select locks the row before it is judged free.
-- * FOR UPDATE, not FOR NO KEY UPDATE: a guard that holds the grant before this one
--   holds it with FOR KEY SHARE, and must be met.
-- * Token order. The token is drawn while the row is locked.
-- * No waiting. SKIP LOCKED: a row that a guarded transaction holds is busy.
-- * Losing is free. On a held lock nothing is locked and nothing written.
-- * Repeating it is safe. A request that won does not win again: see acquire.sql.
-- * In turn. As long as somebody with a smaller ticket waits the lock is not for us. Whether
--   they are passed over is for acquire.sql to judge.
-- * One way to the row. The sub-select tells where the row is that it has locked. If that was
--   made after this statement began, the UPDATE does not see it, and there is no row.
-- * The clock is the server's, read when the row is in our hands; now() would be
--   the start of the transaction.
-- * A grant must survive a crash, whatever synchronous_commit says here.
UPDATE pglock.distributed_locks AS l
SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = l.version + 1,
    ticket = CASE WHEN $6::bigint < 9223372036854775807 THEN greatest(l.ticket, $6::bigint) ELSE l.ticket END,
    acquired_at = clock_timestamp(),
    expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond', released_at = NULL,
    request = $3::text::uuid, holder = $2::text, labels = $4::text::jsonb
WHERE l.ctid = (
    SELECT f.ctid
    FROM pglock.distributed_locks AS f
    WHERE f.name = $1::text
      AND f.expires_at <= clock_timestamp()
      AND (f.request <> $3::text::uuid) IS NOT FALSE
      AND NOT EXISTS (SELECT FROM pglock.lock_waiters AS w
                      WHERE w.name = $1::text AND w.ticket > f.ticket AND w.ticket < $6::bigint
                        AND w.expires_at > clock_timestamp())
      AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')
    FOR UPDATE SKIP LOCKED)
RETURNING l.token, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
