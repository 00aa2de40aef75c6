-- Grants each of the names $1, which differ from each other, to its holder $2 for $5
-- microseconds, if it is free.
--
--   $3  requests: one value for all attempts of one acquire
--   $4  labels, jsonb
--   $6  tickets; the largest bigint for a newcomer, 0 for whoever barges in
--
-- Of holders, labels, durations and tickets one stands for all if they are the same.
--
-- Returns rows of name, outcome, token, holder, remaining microseconds, how many wait with
-- a smaller ticket, and whether the ticket is void:
--   granted  the grant is ours: token, and what remains of it
--   busy     somebody else's: its token, holder and what remains of it. Holder null and
--            nothing remaining: it is free, but its row is locked, or others are before us
--   spent    this request won before and its grant has ended: ask with a new one
-- A name that was granted by this very statement has two rows: "granted" counts. A name
-- without a row came into being meanwhile: ask again.
--
-- Why it is safe:
-- * One winner. An existing row is locked before it is judged free (free), a new
--   one is decided by the primary key (first).
-- * FOR UPDATE, not FOR NO KEY UPDATE: a guard that holds the grant before this one
--   holds it with FOR KEY SHARE, and must be met.
-- * Token order. The token is drawn while the row is locked (again), or, for a new
--   row, while pruning is kept out (gate): a stalled insert then meets the row of
--   whoever overtook it and loses.
-- * No waiting. SKIP LOCKED: a row that a guarded transaction holds is busy, and does
--   not delay the others. Only for an insert that is under way a new name waits, for a
--   quarter of a second at most; then the statement fails (lock_not_available).
-- * No deadlock. Rows are locked and made in the order of names, everywhere the same.
-- * Losing is free. On a held lock nothing is locked and nothing written.
-- * Repeating it is safe. A request whose grant lives gets that grant again; once
--   that grant has ended, an attempt that was stuck on the way can't win it back.
-- * In turn. As long as somebody with a smaller ticket waits the lock is not for us,
--   unless it has been free for one and a half and nobody came; then they
--   are passed over, and their tickets void.
-- * The clock is the server's, read when the row is in our hands; now() would be
--   the start of the transaction.
-- * A grant must survive a crash, whatever synchronous_commit says here.
-- * What was asked for is never joined with what was done: that would be quadratic.
-- * One plan for any number of names: behind a SELECT the planner does not see how many they
--   are. Where it does, it plans anew each time that they are few, which takes longer than
--   all the rest. The other statements for many do the same.
WITH asked AS MATERIALIZED (
    SELECT a.name, coalesce(a.holder, ($2::text[])[1]) AS holder, a.request::uuid AS request,
           coalesce(a.labels, ($4::text[])[1])::jsonb AS labels,
           coalesce(a.us, ($5::bigint[])[1]) AS us, coalesce(a.ticket, ($6::bigint[])[1]) AS ticket
    FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::text[]),
                (SELECT $5::bigint[]), (SELECT $6::bigint[])) AS a (name, holder, request, labels, us, ticket)
), seen AS MATERIALIZED (
    SELECT l.name, l.token, l.holder, l.expires_at, l.request IS NOT DISTINCT FROM a.request AS ours,
           l.ticket >= a.ticket AS passed,
           (SELECT count(*) FROM pglock.lock_waiters AS w
            WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < a.ticket
              AND w.expires_at > clock_timestamp()) AS ahead
    FROM asked AS a
    JOIN pglock.distributed_locks AS l ON l.name = a.name
), free AS MATERIALIZED (
    SELECT l.name, a.holder, a.request, a.labels, a.us, a.ticket
    FROM asked AS a
    JOIN pglock.distributed_locks AS l ON l.name = a.name
    WHERE l.expires_at <= clock_timestamp()
      AND l.request IS DISTINCT FROM a.request
      AND (NOT EXISTS (SELECT FROM pglock.lock_waiters AS w
                       WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < a.ticket
                         AND w.expires_at > clock_timestamp())
           OR coalesce(l.released_at, l.expires_at) <= clock_timestamp() - interval '1500 ms')
    ORDER BY l.name COLLATE "C"
    FOR UPDATE OF l SKIP LOCKED
), again AS (
    UPDATE pglock.distributed_locks AS l
    SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = l.version + 1,
        ticket = CASE
            WHEN f.ticket < 9223372036854775807 THEN greatest(l.ticket, f.ticket)
            WHEN coalesce(l.released_at, l.expires_at) <= clock_timestamp() - interval '1500 ms' THEN coalesce((
                SELECT min(w.ticket) FROM pglock.lock_waiters AS w
                WHERE w.name = l.name AND w.ticket > l.ticket AND w.expires_at > clock_timestamp()), l.ticket)
            ELSE l.ticket END,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + f.us * interval '1 microsecond', released_at = NULL,
        request = f.request, holder = f.holder, labels = f.labels
    FROM free AS f
    WHERE l.name = f.name
    RETURNING l.name, l.token, l.expires_at
), gate AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(pglock.prune_gate()),
           set_config('lock_timeout', '250ms', true)
    WHERE (SELECT count(*) FROM asked) > (SELECT count(*) FROM seen)
), first AS (
    INSERT INTO pglock.distributed_locks (name, token, version, holder, request, labels, acquired_at, expires_at)
    SELECT a.name, pglock.next_fencing_token(), 1, a.holder, a.request, a.labels,
           clock_timestamp(), clock_timestamp() + a.us * interval '1 microsecond'
    FROM gate, asked AS a
    WHERE NOT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = a.name)
    ORDER BY a.name COLLATE "C"
    ON CONFLICT (name) DO NOTHING
    RETURNING name, token, expires_at
), won AS (
    SELECT name, token, expires_at FROM again
    UNION ALL
    SELECT name, token, expires_at FROM first
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END
)
SELECT r.name, r.outcome, r.token, r.holder,
       CASE WHEN r.expires_at > clock_timestamp()
            THEN (extract(epoch FROM r.expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       r.ahead, r.passed
FROM durable, (
    SELECT name, 'granted' AS outcome, token, NULL AS holder, expires_at, 0 AS ahead, false AS passed FROM won
    UNION ALL
    SELECT name,
           CASE WHEN NOT ours THEN 'busy' WHEN expires_at > clock_timestamp() THEN 'granted' ELSE 'spent' END,
           token, holder, expires_at, ahead, passed
    FROM seen
) AS r
