-- Subtracts the quantities :2 from the rows of :table whose :key is in :1, or adds them: keys and
-- quantities correspond by their position in the two arrays, which are passed as text. :3 is -1 to
-- subtract and 1 to add. The parameters of :where come before them.
--
-- Returns for each row that exists: the positions of its key in :1 (more than one if the column's
-- type finds two of the keys equal), the old quantity, whether that is too little, the new
-- quantity (NULL if nothing was changed), and whether that is the exact sum.
--
-- All rows are locked before any is changed, in the order of the key, so that callers can't wait
-- for each other in a cycle. The statement compares and changes the locked rows, not those of its
-- snapshot. It changes all rows or none. It computes in numeric, which does not overflow.
WITH locked AS MATERIALIZED (
    SELECT pg_catalog.array_positions(:1, t.:key) AS positions,
           t.:key AS key,
           coalesce(t.:quantity::numeric, 0) AS had
    FROM :table AS t
    WHERE t.:key = ANY (:1) :where
    ORDER BY t.:key
    FOR NO KEY UPDATE OF t :wait
), line AS MATERIALIZED (
    SELECT positions, key, had,
           (:2::numeric[])[positions[1]] AS amount,
           :3::integer < 0 AND coalesce(had < (:2::numeric[])[positions[1]], false) AS short
    FROM locked
), verdict AS MATERIALIZED (
    SELECT count(*) = pg_catalog.cardinality(:2::numeric[]) AND bool_and(NOT short AND pg_catalog.cardinality(positions) = 1) AS pass
    FROM line
), moved AS (
    UPDATE :table AS t
    SET :quantity = line.had + :3::numeric * line.amount
    FROM line, verdict
    WHERE verdict.pass AND t.:key = line.key :where
    RETURNING line.positions, t.:quantity::numeric AS has, t.:quantity::numeric = line.had + :3::numeric * line.amount AS exact
)
SELECT line.positions, line.had::text, line.short, moved.has::text, moved.exact
FROM line LEFT JOIN moved ON moved.positions OPERATOR(pg_catalog.=) line.positions
ORDER BY line.positions[1]
