-- Returns the last $1 actions of operators, but 100 at most, the newest first.
SELECT a.at::timestamptz AS at, a.role, a.application, a.action AS what, a.name::text AS name, coalesce(a.token, 0) AS token, a.reason
FROM pglock.operator_actions AS a ORDER BY a.id DESC LIMIT least($1::bigint, 100)
