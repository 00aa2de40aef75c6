-- Asks the holder of the grant $2 of the name $1 to release it, for the reason $3. The holder learns
-- of it with its next renewal. Notifies the channel $4, which clients that hold leases may listen
-- on, of the token if $5.
--
-- Returns one row if the name has one: the token of its last grant, and whether the holder of $2 is
-- asked, which is recorded. Only the current grant is asked, and the next grant clears the request.
WITH requested AS (
    UPDATE pglock.distributed_locks AS l
    SET release_request = $3::text, version = pglock.next_version(l.version)
    WHERE l.name = $1::text AND l.token = $2::bigint AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
      AND set_config('lock_timeout', '250ms', true) = '250ms'
    RETURNING CASE WHEN $5::boolean THEN pg_notify($4::text, l.token::text) END
), requested_shared AS (
    UPDATE pglock.lock_permits AS p
    SET release_request = $3::text, version = pglock.next_version(p.version)
    WHERE p.name = $1::text AND p.token = $2::bigint AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp()
      AND set_config('lock_timeout', '250ms', true) = '250ms'
    RETURNING CASE WHEN $5::boolean THEN pg_notify($4::text, p.token::text) END
)
SELECT l.token, CASE WHEN r.done THEN pglock.record_action('asked to release', $1::text, $2::bigint, $3::text) ELSE false END
FROM (SELECT EXISTS (SELECT FROM requested) OR EXISTS (SELECT FROM requested_shared)) AS r (done), pglock.distributed_locks AS l
WHERE l.name = $1::text
