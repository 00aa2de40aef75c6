-- Renews the grants ($1 names, $2 tokens) for $3 microseconds each.
--
-- Returns a row for each renewed grant: name, token, remaining microseconds, and the reason if its
-- holder is asked to release it. A missing one is gone, or its row is locked: see check_grants.sql.
--
-- Why it is safe:
-- * Name and token must both match, and no row is ever inserted: a lost lease is not won back, and
--   a released one is not revived.
-- * An expired lease is not revived either, even if it has no new holder.
-- * SKIP LOCKED: a row that another transaction has locked does not delay the others, and the clock
--   is never read before a wait.
-- * greatest(): a renewal never shortens a promise.
-- * token does not change: the update is heap-only, and compatible with a guard's FOR KEY SHARE.
-- * Rows are locked in the order of names: clients can't deadlock.
-- * Each row is found by the primary key, twice. Joining parameters with results would be quadratic
--   in a generic plan, which estimates ten rows for $1.
-- * A renewal must survive a crash, whatever synchronous_commit says here. A canceled wait for a
--   standby is reported by a warning.
WITH ours AS MATERIALIZED (
    SELECT l.name, l.token, w.us
    FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS w (name, token, us)
    JOIN pglock.distributed_locks AS l ON l.name = w.name AND l.token = w.token
    WHERE l.holder IS NOT NULL
    ORDER BY l.name
    FOR NO KEY UPDATE OF l SKIP LOCKED
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END,
           CASE WHEN current_setting('client_min_messages') = 'error'
                THEN set_config('client_min_messages', 'warning', true) END
)
UPDATE pglock.distributed_locks AS l
SET version = l.version % 9223372036854775807 + 1,
    expires_at = greatest(l.expires_at, clock_timestamp() + o.us * interval '1 microsecond')
FROM ours AS o, durable
WHERE l.name = o.name AND l.token = o.token AND l.expires_at > clock_timestamp()
RETURNING l.name, l.token,
          (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint, l.release_request
