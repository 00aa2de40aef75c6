-- Locks one key: lock.sql for the common case, without arrays, at a third of the cost. $1 is the
-- bound of the wait and $2 the key; pg_advisory_xact_lock stands for the lock function of the call.
--
-- Each level reads the one below, and OFFSET 0 keeps the planner from merging them; CASE evaluates
-- its condition first. So the setting is read, then changed, then in force during the wait, then
-- restored.
SELECT set_config('lock_timeout', setting, true), current_setting('transaction_isolation')
FROM (
    SELECT setting, CASE
        WHEN set_config('lock_timeout', CASE
            WHEN setting = '0' THEN $1::bigint
            ELSE least($1::bigint, (date_part('epoch', setting::interval) * 1000::float8)::bigint)
        END::text, true) <> '' THEN pg_advisory_xact_lock($2::bigint)
    END
    FROM (SELECT current_setting('lock_timeout') AS setting OFFSET 0) AS own
    OFFSET 0
) AS locked
