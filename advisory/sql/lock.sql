-- Locks the keys in the given order, and waits for at most $1 milliseconds in all.
--
--   $2  the keys
--   $3  whether the locks are shared
--
-- Returns one row, whose second column is the isolation level. A longer wait fails with
-- lock_not_available.
--
-- The server reads lock_timeout when a wait begins, so the statement can set it itself: for each
-- key to the time that is left, and never above the transaction's own setting, where 0 means
-- none. Afterwards it restores the setting; after a failure the savepoint does. Each step reads
-- the one before, and CASE evaluates its conditions first: this gives the order.
WITH own AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS setting,
           nullif((date_part('epoch', current_setting('lock_timeout')::interval) * 1000::float8)::bigint, 0) AS ms
), key AS MATERIALIZED (
    SELECT k.*, own.setting, own.ms
    FROM own, pg_catalog.unnest($2::bigint[]) WITH ORDINALITY AS k (id, n)
    ORDER BY k.n
), locked AS MATERIALIZED (
    SELECT setting, CASE
        WHEN set_config('lock_timeout', least(ms, greatest(1, $1::bigint
            - (date_part('epoch', clock_timestamp() - statement_timestamp()) * 1000::float8)::bigint))::text, true) = '' THEN NULL
        WHEN $3::boolean THEN pg_advisory_xact_lock_shared(id)
        ELSE pg_advisory_xact_lock(id)
    END
    FROM key
), done AS MATERIALIZED (
    SELECT max(setting) AS setting FROM locked
)
SELECT set_config('lock_timeout', setting, true), current_setting('transaction_isolation') FROM done
