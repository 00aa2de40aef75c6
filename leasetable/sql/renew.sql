-- Renews the grants ($1 names, $2 tokens) for $3 microseconds each.
--
-- Returns a row for each that was renewed: name, token, remaining microseconds. Those
-- that are missing are gone, or their row is locked at the moment: see alive.sql.
--
-- Why it is safe:
-- * Name and token must both match, and no row is ever made: a lost lease is not
--   stolen back and a released one not revived.
-- * An ended lease is not revived either, even if nobody took it.
-- * SKIP LOCKED: one row that somebody locked by hand does not delay the others,
--   and the clock is never read before a wait.
-- * greatest(): a renewal never shortens what was promised.
-- * token does not change: the update is heap-only, and passes a guard's
--   FOR KEY SHARE.
-- * Rows are locked in the order of names, so that clients can't deadlock.
-- * Each row is found by the primary key, twice. Joining what was asked for with what
--   was done would be quadratic in a generic plan, which takes $1 for ten rows.
-- * A renewal must survive a crash, whatever synchronous_commit says here.
WITH ours AS MATERIALIZED (
    SELECT l.name, l.token, w.us
    FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS w (name, token, us)
    JOIN pglock.distributed_locks AS l ON l.name = w.name AND l.token = w.token
    WHERE l.holder IS NOT NULL
    ORDER BY l.name
    FOR NO KEY UPDATE OF l SKIP LOCKED
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END
)
UPDATE pglock.distributed_locks AS l
SET version = l.version + 1,
    expires_at = greatest(l.expires_at, clock_timestamp() + o.us * interval '1 microsecond')
FROM ours AS o, durable
WHERE l.name = o.name AND l.token = o.token AND l.expires_at > clock_timestamp()
RETURNING l.name, l.token,
          (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
