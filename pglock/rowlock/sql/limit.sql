-- Sets lock_timeout to $1 milliseconds for this transaction, unless it is shorter already. A
-- setting of 0 means no limit.
--
-- Returns the earlier setting.
WITH own AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS setting,
           nullif((date_part('epoch', current_setting('lock_timeout')::interval) * 1000::float8)::bigint, 0) AS ms
), changed AS MATERIALIZED (
    SELECT setting, set_config('lock_timeout', least(ms, $1::bigint)::text, true) FROM own
)
SELECT setting FROM changed
