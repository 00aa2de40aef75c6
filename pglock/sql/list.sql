-- Reads the next 500 rows after the name $1 in the order of the primary key. matching.sql and row.sql follow.
-- A step costs the same however many rows there are. 500 is a constant, so that the planner walks the
-- index instead of sorting the table. The snapshot ends with the statement.
WITH read AS MATERIALIZED (
    SELECT l.*, clock_timestamp() AS read_at
    FROM pglock.distributed_locks AS l
    WHERE l.name > $1::text
    ORDER BY l.name
    LIMIT 500
), queues AS MATERIALIZED (
    SELECT r.name, w.waiting
    FROM read AS r CROSS JOIN LATERAL (
        SELECT count(*) AS waiting FROM pglock.lock_waiters AS w
        WHERE w.name = r.name AND (w.state = 'queued' AND w.ticket > r.ticket OR w.state = 'overflow') AND w.expires_at > r.read_at) AS w
    WHERE $7::boolean
