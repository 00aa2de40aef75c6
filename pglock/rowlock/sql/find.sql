-- Finds which of the keys $1 (an array, as text) have a row in :table. Parameters from $2 on
-- belong to :where.
--
-- Returns for each row the positions of its key in $1, counted from 1: usually one, and more if
-- the column's type finds two of the keys equal.
SELECT array_positions($1, t.:key)
FROM :table AS t
WHERE t.:key = ANY ($1) :where
