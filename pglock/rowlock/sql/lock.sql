-- Locks the rows of :table whose :key is among :1 (an array, as text) and that meet :where.
--
-- Returns for each row, in the order of the key, the positions of its key in :1, counted from 1:
-- usually one. They are looked up by the key's text form, since array_positions reads the whole
-- array for each row. It is needed for equal keys with different text, such as 1.0 and 1.00. The
-- subquery in coalesce is not run: it gives :1 its type.
--
-- The server locks rows as they leave the sort, so all callers lock them in the same order and
-- can't wait for each other in a cycle. That order is the one of the statement's snapshot. A row
-- that changed during the wait is returned as it is now, and left out if it no longer matches; so
-- the result is sorted once more.
WITH given AS MATERIALIZED (
    SELECT k.value::text AS text, pg_catalog.array_agg(k.position::integer) AS positions
    FROM pg_catalog.unnest(coalesce(:1, ARRAY(SELECT t.:key FROM :table AS t))) WITH ORDINALITY AS k(value, position)
    GROUP BY k.value::text
), locked AS MATERIALIZED (
    SELECT t.:key AS key
    FROM :table AS t
    WHERE t.:key = ANY (:1) :where
    ORDER BY t.:key
    FOR :strength OF t :wait
)
SELECT coalesce(given.positions, pg_catalog.array_positions(:1, locked.key))
FROM locked LEFT JOIN given ON given.text OPERATOR(pg_catalog.=) locked.key::text
ORDER BY locked.key
