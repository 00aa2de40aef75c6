-- Deletes those rows of the names $2 that are idle for $1 microseconds, as idle.sql
-- has it.
--
-- Returns one row: whether the gate was open, and how many rows were deleted.
--
-- Why it is safe:
-- * A stalled first grant has drawn its token and not yet inserted its row. If
--   that name was granted, released and pruned meanwhile, the old token would win.
--   So first grants hold the gate shared, and pruning goes on only where it gets
--   the gate alone, at once. It holds it for this one statement, which finds its
--   rows by the primary key.
-- * Rows in use by others are skipped, and those that were granted since are not idle.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(pglock.prune_gate()) AS open
), idle AS MATERIALIZED (
    SELECT l.name
    FROM gate, pglock.distributed_locks AS l
    WHERE gate.open
      AND l.name = ANY ($2::text[])
      AND l.expires_at <= clock_timestamp()
      AND greatest(l.acquired_at, l.expires_at, l.released_at) <= clock_timestamp() - $1::bigint * interval '1 microsecond'
    FOR UPDATE OF l SKIP LOCKED
), pruned AS (
    DELETE FROM pglock.distributed_locks AS l
    USING idle
    WHERE l.name = idle.name
    RETURNING 1
)
SELECT (SELECT open FROM gate), (SELECT count(*) FROM pruned)
