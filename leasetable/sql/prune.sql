-- Deletes up to $2 rows of names that nobody has held for $1 microseconds, counted
-- from the grant (released) or from its end (expired).
--
-- Returns one row: whether the gate was open, and how many rows were deleted.
--
-- Why it is safe:
-- * A stalled first grant has drawn its token and not yet inserted its row. If
--   that name was granted, released and pruned meanwhile, the old token would win.
--   So first grants hold the gate shared, and pruning goes on only where it gets
--   the gate alone, at once; nobody waits for anybody.
-- * The row with the highest token stays: lift_fencing_tokens() needs it.
-- * Rows in use by others are skipped.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(pglock.prune_gate()) AS open
), idle AS MATERIALIZED (
    SELECT l.name
    FROM gate, pglock.distributed_locks AS l
    WHERE gate.open
      AND l.expires_at <= clock_timestamp()
      AND greatest(l.acquired_at, l.expires_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
      AND l.token < (SELECT max(token) FROM pglock.distributed_locks)
    LIMIT $2::bigint
    FOR UPDATE OF l SKIP LOCKED
), pruned AS (
    DELETE FROM pglock.distributed_locks AS l
    USING idle
    WHERE l.name = idle.name
    RETURNING 1
)
SELECT (SELECT open FROM gate), (SELECT count(*) FROM pruned)
