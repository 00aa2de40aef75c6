-- Renews the grants ($1 names, $2 tokens) for $3 microseconds each.
--
-- Returns one row a grant: name, token, outcome, version, remaining microseconds.
--   renewed  it ends no sooner than its microseconds from now
--   locked   the row is locked by somebody else at the moment: ask again
--   gone     it is not the current grant any more, or has ended
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
WITH wanted AS MATERIALIZED (
    SELECT w.name, w.token, w.us
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w (name, token, us)
), ours AS MATERIALIZED (
    SELECT l.name, l.token, w.us
    FROM pglock.distributed_locks AS l
    JOIN wanted AS w ON w.name = l.name AND w.token = l.token
    WHERE l.holder IS NOT NULL
    ORDER BY l.name
    FOR NO KEY UPDATE OF l SKIP LOCKED
), renewed AS (
    UPDATE pglock.distributed_locks AS l
    SET version = l.version + 1,
        expires_at = greatest(l.expires_at, clock_timestamp() + o.us * interval '1 microsecond')
    FROM ours AS o
    WHERE l.name = o.name AND l.token = o.token AND l.expires_at > clock_timestamp()
    RETURNING l.name, l.token, l.version, l.expires_at
)
SELECT w.name, w.token,
       CASE
           WHEN r.token IS NOT NULL THEN 'renewed'
           WHEN s.token IS NULL OR o.token IS NOT NULL THEN 'gone'
           ELSE 'locked'
       END,
       coalesce(r.version, 0),
       CASE WHEN r.token IS NOT NULL
            THEN (extract(epoch FROM r.expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', true) END IS NOT NULL
FROM wanted AS w
LEFT JOIN renewed AS r ON r.name = w.name AND r.token = w.token
LEFT JOIN ours AS o ON o.name = w.name AND o.token = w.token
LEFT JOIN pglock.distributed_locks AS s
       ON s.name = w.name AND s.token = w.token AND s.expires_at > clock_timestamp()
