-- Adds the labels $3, jsonb, to those of the grant $2 of the name $1, or replaces those with the same
-- keys, if all of them have at most $4 bytes as JSON without blanks, of which the server's text has two for
-- each but one. Nothing is written if the grant has these labels. In either case the clients that watch the
-- lock are notified, if $5.
--
-- Returns one row if the name has one: the token of its last grant, whether it has the labels now,
-- which only the current grant gets, and whether they would be too large. They must survive a
-- crash, like the grant.
WITH known AS MATERIALIZED (
    SELECT FROM pglock.distributed_locks AS l
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
      AND l.labels = l.labels || $3::text::jsonb
), changed AS (
    UPDATE pglock.distributed_locks AS l
    SET labels = l.labels || $3::text::jsonb, version = pglock.next_version(l.version)
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
      AND NOT EXISTS (SELECT FROM known)
      AND octet_length((l.labels || $3::text::jsonb)::text) - 2 * (SELECT count(*) FROM jsonb_object_keys(l.labels || $3::text::jsonb)) < $4::int
      AND pglock.commit_durably()
      AND set_config('lock_timeout', '250ms', true) = '250ms'
    RETURNING l.token
)
SELECT l.token,
    CASE WHEN EXISTS (SELECT FROM known) OR EXISTS (SELECT FROM changed) THEN (
        SELECT count(CASE WHEN $5::boolean THEN pg_notify(w.client, w.name) END) >= 0
        FROM pglock.lock_waiters AS w
        WHERE w.name = $1::text AND w.state = 'watching' AND w.expires_at > clock_timestamp()
    ) ELSE false END,
    octet_length((l.labels || $3::text::jsonb)::text) - 2 * (SELECT count(*) FROM jsonb_object_keys(l.labels || $3::text::jsonb)) >= $4::int
FROM pglock.distributed_locks AS l
WHERE l.name = $1::text
