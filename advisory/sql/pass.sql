-- Passes the turnstile and tries the lock, for this session. :key stands for the key's argument
-- or two.
--
--   $1  the turnstile
--   $2  whether the lock is shared
--   $3  whether the session may stay in the turnstile
--   $4  the key, or its first number; $5 the second
--
-- Returns one row: the outcome, and two columns that only have effects: the unlock of the
-- turnstile, and the settings of a session that keeps the lock or the turnstile.
--
--   closed    another session holds the turnstile; this one holds nothing
--   granted   the session holds the lock, and not the turnstile
--   busy      the session holds nothing
--   next      the session holds the turnstile exclusively, since the other kind holds the lock:
--             readers if this is a writer, or a writer if this is a reader
--
-- CASE evaluates its conditions in order and stops at the first that is true. Each function is
-- called once. OFFSET 0 keeps the planner from merging the levels. A writer knows that readers
-- hold the lock, and no writer, if it is granted the lock as a reader; it unlocks that at once.
--
-- The settings are part of the statement, so that every session that holds something has them: the
-- client may fall silent before it reads the answer. The server ends a session whose client does
-- not answer at all: it probes after 5 s of silence, then every 2 s, and gives up after 11 s. On a
-- Unix-domain socket these four have no effect. The server also ends a session that holds the
-- turnstile and sends no statement for 2 s, which is many of its pauses; versions before 14 have
-- no such setting.
SELECT outcome,
    CASE WHEN outcome <> 'closed' THEN pg_advisory_unlock_shared($1::bigint) END,
    CASE WHEN outcome IN ('granted', 'next') THEN
        set_config('tcp_keepalives_idle', '5', false)
        || set_config('tcp_keepalives_interval', '2', false)
        || set_config('tcp_keepalives_count', '3', false)
        || set_config('tcp_user_timeout', '11000', false)
        || CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
               THEN set_config('idle_session_timeout', CASE outcome WHEN 'next' THEN '2s' ELSE '0' END, false) END
    END
FROM (
    SELECT CASE
        WHEN NOT pg_try_advisory_lock_shared($1::bigint) THEN 'closed'
        WHEN CASE WHEN $2::boolean THEN pg_try_advisory_lock_shared:key ELSE pg_try_advisory_lock:key END THEN 'granted'
        WHEN NOT $3::boolean THEN 'busy'
        WHEN CASE WHEN $2::boolean THEN false
                  WHEN pg_try_advisory_lock_shared:key THEN NOT pg_advisory_unlock_shared:key
                  ELSE true END THEN 'busy'
        WHEN pg_try_advisory_lock($1::bigint) THEN 'next'
        ELSE 'busy'
    END AS outcome
    OFFSET 0
) AS passed
