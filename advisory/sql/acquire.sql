-- Tries the lock for this session.
--
-- Returns one row: whether the lock is held, and a column that only has effects: the settings of a
-- session that holds the lock.
--
-- The settings are part of the statement, because the client may fall silent before it reads the
-- answer. The server ends a session whose client does not answer at all: it probes after 5 s of
-- silence, then every 2 s, and gives up after 11 s. On a Unix-domain socket these four have no
-- effect. It must not end a session for being idle, which is a setting of PostgreSQL 14 and later.
--
-- The function is called once: OFFSET 0 keeps the planner from merging the levels.
SELECT held,
    CASE WHEN held THEN
        set_config('tcp_keepalives_idle', '5', false)
        || set_config('tcp_keepalives_interval', '2', false)
        || set_config('tcp_keepalives_count', '3', false)
        || set_config('tcp_user_timeout', '11000', false)
        || CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL
               THEN set_config('idle_session_timeout', '0', false) END
    END
FROM (SELECT pg_try_advisory_lock($1::bigint) AS held OFFSET 0) AS tried
