-- Finds which of the keys $1 (an array, as text) have a row in :table. Parameters from $2 on
-- belong to :where.
--
-- Returns for each row its places in $1, counted from 1: usually one; more if the column's type
-- takes two of the keys for the same.
SELECT array_positions($1, t.:key)
FROM :table AS t
WHERE t.:key = ANY ($1) :where
