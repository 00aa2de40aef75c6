-- Grants the name $1 to another caller of the process that holds it as $2, instead of releasing it:
-- request $3, holder $4, labels $5, for $6 microseconds. $7 is the client.
--
-- Returns one row on success: the new token and the remaining microseconds. No row: other clients
-- wait, a guarded transaction still uses the grant, it is not current, or the name has permits.
-- Then it must be released.
--
-- Why it is safe: as acquire_fast.sql, except that the row is ours by the grant $2, which its
-- holder gives up. It may have expired: as long as the row has its token, nobody else was granted the
-- lock since. No ticket is used up.
UPDATE pglock.distributed_locks AS l
SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = pglock.next_version(l.version),
    acquired_at = clock_timestamp(), expires_at = clock_timestamp() + $6::bigint * interval '1 microsecond', release_request = NULL,
    last_holder = l.holder, last_end = 'released', ended_at = clock_timestamp(),
    request = $3::text::uuid, holder = $4::text, labels = $5::text::jsonb
WHERE l.ctid = (
    SELECT f.ctid
    FROM pglock.distributed_locks AS f
    WHERE f.name = $1::text AND f.token = $2::bigint AND f.holder IS NOT NULL AND (f.capacity > 0) IS NOT TRUE
      AND NOT EXISTS (SELECT FROM pglock.queue($1::text, f.ticket) AS w WHERE w.client <> $7::text)
      AND pglock.commit_durably()
    FOR UPDATE SKIP LOCKED)
RETURNING l.token, (date_part('epoch', l.expires_at - clock_timestamp()) * 1000000)::bigint
