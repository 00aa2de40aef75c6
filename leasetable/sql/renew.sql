-- Renews the grants ($1 names, $2 tokens) for $3 microseconds each, wherever they are kept: in the row
-- of the name, or in lock_permits. A grant can move from the one to the other. Unless $4 is null, it
-- becomes the holder of the grants: another process goes on with them. Both can renew and release
-- them from then on.
--
-- Returns a row for each renewed grant: name, token, remaining microseconds, and the reason if its
-- holder is asked to release it; the microseconds since the grant, the request that was granted, the
-- number of permits that the grant has, null without permits, and with $4 the number of permits of the
-- name, 0 for a lock with one holder. A missing one is gone, or its row is locked: see check_grants.sql.
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
-- * A grant that moves while this statement runs is locked, or in neither table: it is renewed by
--   the next attempt.
-- * Each row is found by the primary key, twice, whatever the planner believes of the tables: by LATERAL,
--   and by the names that were found. Joining parameters with results would be quadratic in a generic
--   plan, which estimates ten rows for $1.
WITH asked AS MATERIALIZED (
    SELECT w.name, w.token, w.us
    FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS w (name, token, us)
    ORDER BY w.name COLLATE "C", w.token
), ours AS MATERIALIZED (
    SELECT l.name, l.token, w.us FROM asked AS w
    CROSS JOIN LATERAL (SELECT l.name, l.token FROM pglock.distributed_locks AS l WHERE l.name = w.name AND l.token = w.token
                        AND l.holder IS NOT NULL AND (SELECT pglock.commit_durably()) FOR NO KEY UPDATE SKIP LOCKED) AS l
), ours_shared AS MATERIALIZED (
    SELECT p.name, p.token, w.us FROM asked AS w
    CROSS JOIN LATERAL (SELECT p.name, p.token FROM pglock.lock_permits AS p WHERE p.name = w.name AND p.token = w.token
                        AND p.holder IS NOT NULL AND (SELECT pglock.commit_durably()) FOR NO KEY UPDATE SKIP LOCKED) AS p
), renewed AS (
    UPDATE pglock.distributed_locks AS l
    SET version = pglock.next_version(l.version), holder = coalesce($4::text, l.holder),
        expires_at = greatest(l.expires_at, clock_timestamp() + o.us * interval '1 microsecond')
    FROM ours AS o
    WHERE l.name = o.name AND l.token = o.token AND l.name = ANY (ARRAY(SELECT n.name FROM ours AS n)) AND l.expires_at > clock_timestamp()
    RETURNING l.name, l.token, l.expires_at, l.release_request, l.acquired_at, l.request, l.capacity AS weight
), renewed_shared AS (
    UPDATE pglock.lock_permits AS p
    SET version = pglock.next_version(p.version), holder = coalesce($4::text, p.holder),
        expires_at = greatest(p.expires_at, clock_timestamp() + o.us * interval '1 microsecond')
    FROM ours_shared AS o
    WHERE p.name = o.name AND p.token = o.token AND p.name = ANY (ARRAY(SELECT n.name FROM ours_shared AS n)) AND p.expires_at > clock_timestamp()
    RETURNING p.name, p.token, p.expires_at, p.release_request, p.acquired_at, p.request, p.weight
)
SELECT r.name, r.token, (extract(epoch FROM r.expires_at - clock_timestamp()) * 1000000)::bigint, r.release_request,
       (extract(epoch FROM clock_timestamp() - r.acquired_at) * 1000000)::bigint, r.request::text, r.weight,
       CASE WHEN $4::text <> '' THEN (SELECT coalesce(l.capacity, 0) FROM pglock.distributed_locks AS l WHERE l.name = r.name) END
FROM (SELECT * FROM renewed UNION ALL SELECT * FROM renewed_shared) AS r
