-- Revokes the grant $2 of the name $1 for the reason $3: the row is free, as after a release, and
-- keeps the reason for the old holder. Notifies the channel $4, which clients that hold leases may
-- listen on, of the token if $5.
--
-- Returns one row if the name has one: the token of its last grant, and whether the grant is revoked, now
-- or by an earlier statement.
--
-- Why it is safe:
-- * A renewal that begins after this commit finds no live grant, and neither does a guard whose
--   snapshot is newer. A guarded transaction in progress holds the row with FOR KEY SHARE, which
--   does not delay this statement, and keeps the next grant away until it ends. await_guards()
--   waits for these, stops guards with older snapshots, and notifies the head of a lock with one
--   holder.
-- * Repeating it is safe: the row says which grants were revoked.
-- * It must survive a crash, because the old holder would be the current one again.
SELECT l.token, r.done, r.notified
FROM pglock.distributed_locks AS l
CROSS JOIN LATERAL (
    SELECT count(*) > 0 AS done, count(CASE WHEN $5::boolean THEN pg_notify($4::text, $2::bigint::text) END) AS notified
    FROM pglock.release_permits(l.name, $2::bigint, $5::boolean AND l.capacity IS NOT NULL, 'revoked', $3::text)) AS r
WHERE l.name = $1::text
