-- Grants $8 of the $7 permits of the name $1 to holder $2 for $5 microseconds, if they are free and
-- nobody waits: the fast path of semaphores and of readers, for a caller without a ticket.
--
--   $3  the request, $4 labels, $6 the ticket, as in acquire_fast.sql
--
-- Returns one row if the grant is ours: token and remaining microseconds. Without a row,
-- acquire_slots handles all other cases, and says why.
--
-- It is safe for the reasons that acquire_fast.sql and 0003_acquire.up.sql give, and because the
-- gate changes first. Every statement that adds, ends or frees a permit changes the gate too. So if
-- this statement's snapshot is too old to see the permits as they are, the UPDATE does not see the
-- version of the gate that "free" has locked, and nothing is granted. Of the two tokens see
-- lock_permits.
WITH free AS MATERIALIZED (
    SELECT f.ctid, f.token
    FROM pglock.distributed_locks AS f
    WHERE f.name = $1::text AND f.holder IS NULL AND f.expires_at <= clock_timestamp()
      AND f.capacity = $7::int AND f.capacity - f.in_use >= $8::int AND (f.request <> $3::text::uuid) IS NOT FALSE
      AND NOT EXISTS (SELECT FROM pglock.lock_permits AS p WHERE p.name = $1::text AND p.request = $3::text::uuid)
      AND NOT EXISTS (SELECT FROM pglock.queue($1::text, f.ticket) AS w WHERE w.ticket < $6::bigint)
      AND pglock.commit_durably()
    FOR UPDATE SKIP LOCKED
), drawn AS MATERIALIZED (
    SELECT f.ctid, greatest(pglock.next_fencing_token(), f.token + 1) AS token FROM free AS f
), gate AS (
    UPDATE pglock.distributed_locks AS l
    SET token = greatest(pglock.next_fencing_token(), (SELECT d.token FROM drawn AS d) + 1), version = pglock.next_version(l.version),
        in_use = l.in_use + $8::int, room_since = clock_timestamp(), acquired_at = clock_timestamp(),
        expires_at = '-infinity', release_request = NULL, labels = '{}'
    WHERE l.ctid = (SELECT d.ctid FROM drawn AS d)
    RETURNING l.acquired_at
)
INSERT INTO pglock.lock_permits AS p (name, token, weight, version, acquired_at, expires_at, request, holder, labels)
SELECT $1::text, d.token, $8::int, 1, g.acquired_at, g.acquired_at + $5::bigint * interval '1 microsecond',
       $3::text::uuid, $2::text, $4::text::jsonb
FROM gate AS g, drawn AS d
RETURNING p.token, (date_part('epoch', p.expires_at - clock_timestamp()) * 1000000)::bigint
