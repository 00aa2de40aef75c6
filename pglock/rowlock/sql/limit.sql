-- Sets lock_timeout to $1 milliseconds for this transaction, unless it is lower already.
--
-- Returns what it was. (0 means no limit there.)
WITH own AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS setting,
           nullif((extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint, 0) AS ms
), changed AS MATERIALIZED (
    SELECT setting, set_config('lock_timeout', least(ms, $1::bigint)::text, true) FROM own
)
SELECT setting FROM changed
