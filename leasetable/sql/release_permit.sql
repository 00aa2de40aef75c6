-- Releases the grant $2 of some of the permits of the name $1, and notifies the waiters for whom
-- there is room from now on if $3: the short form of release_permits, for one name.
--
-- Returns one row if the grant was current, expired or not: whether a waiter was notified. Without a row,
-- release_permits handles all other cases: a grant of all permits, one that a guarded transaction still
-- uses or that is being renewed, and one that is not current.
--
-- * The room is exact, because the permits are those of the row that was deleted, and are taken off the
--   newest version of the gate.
-- * The function looks at the queue after the wait for the gate, with a snapshot of its own.
-- * It locks the permit before the gate, in the wrong order, but does not wait for it. Nobody but another
--   statement for the same grant, such as its revocation, holds the gate and waits for this permit. That
--   statement waits longer, so this one gives up first.
WITH gone AS (
    DELETE FROM pglock.lock_permits AS p
    WHERE p.ctid = (
        SELECT f.ctid
        FROM pglock.lock_permits AS f
        WHERE f.name = $1::text AND f.token = $2::bigint AND f.holder IS NOT NULL
          AND pglock.commit_lazily() AND set_config('lock_timeout', '100ms', true) = '100ms'
        FOR UPDATE SKIP LOCKED)
    RETURNING p.weight, p.holder, p.request
)
UPDATE pglock.distributed_locks AS l
SET in_use = l.in_use - least(l.in_use, g.weight), version = pglock.next_version(l.version),
    request = g.request, last_holder = g.holder, last_end = 'released', ended_at = clock_timestamp(),
    room_since = CASE WHEN l.in_use >= l.capacity THEN clock_timestamp() ELSE l.room_since END
FROM gone AS g
WHERE l.name = $1::text AND l.capacity > 0
RETURNING pglock.wake_for_room(l.name, l.ticket, g.weight, l.capacity - l.in_use, $3::boolean)
