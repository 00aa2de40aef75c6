-- Returns what the tables say about the account $1, in one row: the number of
-- entries, the balance, and the tokens of entries that were written after an entry
-- with a newer token, one for each such entry.
--
-- The balance's row is locked when an entry gets its number, so n is the order of
-- the writes.
SELECT count(*),
       (SELECT balance FROM ledger WHERE account = $1::text),
       coalesce(array_agg(token ORDER BY n) FILTER (WHERE token < newest), '{}')
FROM (
    SELECT n, token, max(token) OVER (ORDER BY n) AS newest
    FROM entries
    WHERE account = $1::text
) AS e
