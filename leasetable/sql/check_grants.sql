-- Returns what holders are to know about their grants ($1 names, $2 tokens): name, token, whether
-- the grant is current and live, the reason of a request to release it, and the reason if it was
-- revoked. A grant that is neither live nor revoked has no row. If a renewal left out a live grant,
-- another transaction has locked its row.
SELECT l.name, w.token, g.live, CASE WHEN g.live THEN l.release_request END,
       CASE WHEN l.revoked_token = w.token THEN coalesce(l.revoked_reason, '') ELSE l.revoked_permits ->> w.token::text END
FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[])) AS w (name, token)
CROSS JOIN LATERAL (SELECT l.* FROM pglock.distributed_locks AS l WHERE l.name = w.name OFFSET 0) AS l
CROSS JOIN LATERAL (SELECT l.token = w.token AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp() AS live) AS g
WHERE g.live OR l.revoked_token = w.token OR l.revoked_permits ? w.token::text
UNION ALL
SELECT p.name, p.token, true, p.release_request, NULL
FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[])) AS w (name, token)
CROSS JOIN LATERAL (SELECT p.* FROM pglock.lock_permits AS p WHERE p.name = w.name AND p.token = w.token OFFSET 0) AS p
WHERE p.holder IS NOT NULL AND p.expires_at > clock_timestamp()
