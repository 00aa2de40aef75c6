-- Locks the rows of :table whose :key is among $1 (an array, as text), and returns :columns in
-- the order of the key. Parameters from $2 on belong to :where.
--
-- The server locks rows as they leave the sort, so all callers lock them in the same order and
-- can't wait for each other in a cycle. That order is the one of the statement's snapshot. A row
-- that changed during the wait is returned as it is now, and left out if it no longer matches; so
-- the result is sorted once more.
WITH locked AS MATERIALIZED (
    SELECT :columns
    FROM :table AS t
    WHERE t.:key = ANY ($1) :where
    ORDER BY t.:key
    FOR :strength OF t :wait
)
SELECT :names FROM locked ORDER BY locked.:key
