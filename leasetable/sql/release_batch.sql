-- Releases the grants ($1 names, $2 tokens) and notifies the head of each queue if $4. Each lock is
-- not free until $3 microseconds after its grant: the batch form of release.sql.
--
-- Returns name and token of each released grant, and whether a waiter was notified. For a missing
-- one, release.sql finds out why: gone, changed since this statement began, or locked by another
-- transaction, for which the others do not wait. Rows are locked in the order of names. Waiters are
-- looked up once, not for each row: so woken is a query of its own. So is the setting, which would
-- take a tenth of the time.
WITH ours AS MATERIALIZED (
    SELECT l.ctid, a.hold
    FROM (SELECT * FROM unnest((SELECT $1::text[]), (SELECT $2::bigint[]), (SELECT $3::bigint[])) AS u (name, token, hold) ORDER BY u.name COLLATE "C") AS a
    CROSS JOIN LATERAL (
        SELECT l.ctid FROM pglock.distributed_locks AS l
        WHERE l.name = a.name AND l.token = a.token AND l.holder IS NOT NULL AND (SELECT pglock.commit_lazily())
        FOR NO KEY UPDATE SKIP LOCKED) AS l
), released AS (
    UPDATE pglock.distributed_locks AS l
    SET holder = NULL,
        expires_at = CASE WHEN o.hold > 0 AND least(l.acquired_at, clock_timestamp()) + o.hold * interval '1 microsecond' > clock_timestamp()
                          THEN least(l.acquired_at, clock_timestamp()) + o.hold * interval '1 microsecond'
                          ELSE '-infinity' END,
        version = pglock.next_version(l.version), last_holder = l.holder, last_end = 'released', ended_at = clock_timestamp()
    FROM ours AS o
    WHERE l.ctid = o.ctid
    RETURNING l.name, l.token, l.ticket
), woken AS MATERIALIZED (
    SELECT CASE WHEN $4::boolean THEN pglock.wake_each(array_agg(f.name::text), array_agg(f.ticket))
                ELSE '{}' END AS names
    FROM released AS f
)
SELECT f.name, f.token, f.name::text = ANY (w.names)
FROM woken AS w, released AS f
