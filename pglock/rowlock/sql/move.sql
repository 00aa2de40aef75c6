-- Takes the quantities $2 from the rows of :table whose :key is in $1, or gives them: the
-- same place in both arrays, which come as text. $3 is -1 for taking, 1 for giving. Parameters
-- from $4 on belong to :where.
--
-- Returns for each row that there is: its places in $1 (more than one if the column's type takes
-- two of the keys for the same), what it had, whether that is too little, what it
-- has now (NULL if nothing was changed), and whether that is exactly the sum.
--
-- All rows are locked before any is changed, in the order of the key, so that callers can't
-- wait for each other in a cycle. What is compared and what is changed are the
-- locked rows as they are then, not as the snapshot shows them. Either all rows are
-- changed, or none. It computes in numeric, which does not overflow.
WITH locked AS MATERIALIZED (
    SELECT array_positions($1, t.:key) AS places,
           t.:key AS key,
           coalesce(t.:quantity::numeric, 0) AS had
    FROM :table AS t
    WHERE t.:key = ANY ($1) :where
    ORDER BY t.:key
    FOR NO KEY UPDATE OF t :wait
), line AS MATERIALIZED (
    SELECT places, key, had,
           ($2::numeric[])[places[1]] AS amount,
           $3::integer < 0 AND coalesce(had < ($2::numeric[])[places[1]], false) AS short
    FROM locked
), verdict AS MATERIALIZED (
    SELECT count(*) = cardinality($2::numeric[]) AND bool_and(NOT short AND cardinality(places) = 1) AS pass
    FROM line
), moved AS (
    UPDATE :table AS t
    SET :quantity = line.had + $3::integer * line.amount
    FROM line, verdict
    WHERE verdict.pass AND t.:key = line.key :where
    RETURNING line.places, t.:quantity::numeric AS has, t.:quantity::numeric = line.had + $3::integer * line.amount AS exact
)
SELECT line.places, line.had::text, line.short, moved.has::text, moved.exact
FROM line LEFT JOIN moved USING (places)
ORDER BY line.places[1]
