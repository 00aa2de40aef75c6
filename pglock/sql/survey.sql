-- Reads all rows, at one time. matching.sql and row.sql follow. $1 is not used.
WITH now AS MATERIALIZED (
    SELECT clock_timestamp() AS read_at
), read AS NOT MATERIALIZED ( -- three scans cost less than a copy of the table
    SELECT l.*, n.read_at
    FROM pglock.distributed_locks AS l, now AS n
    WHERE $1::text = ''
), queues AS MATERIALIZED (
    SELECT r.name, count(*) AS waiting
    FROM read AS r JOIN pglock.lock_waiters AS w ON w.name = r.name
    WHERE (w.state = 'queued' AND w.ticket > r.ticket OR w.state = 'overflow') AND w.expires_at > r.read_at
    GROUP BY r.name
