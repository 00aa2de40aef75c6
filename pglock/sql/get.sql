-- Reads the row of the name $1. row.sql follows, which says what is returned.
WITH step AS MATERIALIZED (
    SELECT 1::bigint AS seen, l.name::text AS last, 1::bigint AS matching, 1::bigint AS place, l.*, clock_timestamp() AS read_at
    FROM pglock.distributed_locks AS l
    WHERE l.name = $1::text
)
