-- Sets, for this session, how soon the server ends it when its client has gone without a
-- word: probes after 5 s of silence, every 2 s, and the end after 11 s without an
-- answer. And keeps it from being ended for idling.
--
-- Returns a row for each setting that this server has. On a Unix-domain socket the first
-- four do nothing.
SELECT set_config(s.name, s.value, false)
FROM (VALUES ('tcp_keepalives_idle', '5'),
             ('tcp_keepalives_interval', '2'),
             ('tcp_keepalives_count', '3'),
             ('tcp_user_timeout', '11000'),
             ('idle_session_timeout', '0')) AS s (name, value)
JOIN pg_settings AS p USING (name)
