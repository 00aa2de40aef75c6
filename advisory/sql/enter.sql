-- Tries the lock for the session that holds the turnstile, and opens the turnstile once the lock
-- is held. The parameters are those of pass.sql without $3: the key is $3, or $3 and $4.
--
-- Returns whether the lock is held, and two columns that only have effects: the unlock of the
-- turnstile, and the end of the idle limit that pass.sql has set.
--
-- Each function is called once. OFFSET 0 keeps the planner from merging the levels.
SELECT held,
    CASE WHEN held THEN pg_advisory_unlock($1::bigint) END,
    CASE WHEN held AND current_setting('idle_session_timeout', true) IS NOT NULL
        THEN set_config('idle_session_timeout', '0', false) END
FROM (
    SELECT CASE WHEN $2::boolean THEN pg_try_advisory_lock_shared:key ELSE pg_try_advisory_lock:key END AS held
    OFFSET 0
) AS tried
