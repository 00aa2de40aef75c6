-- Grants each of the distinct names $1 to its holder $2 for $5 microseconds, if it is free.
--
--   $3  requests: the same for all attempts of one acquire
--   $4  labels, jsonb
--   $6  tickets; the largest bigint without a ticket, 0 to ignore the queue
--
-- For holders, labels, durations and tickets, an array of one element stands for equal values.
--
-- Returns rows of name, outcome, token, holder, remaining microseconds, the number of waiters with
-- a smaller ticket, and whether the ticket is invalid:
--   granted  the grant is ours: its token and remaining time
--   busy     another holder's: its token, holder and remaining time. If the holder is null and no
--            time remains, the lock is free, but its row is locked or other waiters are ahead
--   kind     the name is a semaphore's or a readers-writer lock's: the number of its permits instead
--            of the number of waiters
--   spent    this request won before, and its grant has ended: try with a new one
-- A name that this statement granted has two rows: "granted" counts. A name without a row was
-- inserted meanwhile: try again.
--
-- Why it is safe:
-- * What acquire_fast.sql says of an existing row is true here too (free, regranted).
-- * The primary key decides about a new row (inserted). A stalled insert meets the row of the grant
--   that overtook it, and loses. If that row was pruned meanwhile, the statement fails
--   (require_unpruned, serialization_failure).
-- * No waiting. A busy row does not delay the others. A new name waits only for another insert of it,
--   at most a quarter of a second; then the statement fails (lock_not_available). It takes no advisory
--   lock: any role could hold one.
-- * No deadlock. All statements lock and insert rows in the order of names.
-- * Repeating it is safe. A request whose grant is live gets that grant again. After that grant has
--   ended, a delayed attempt can't win it back, not even while a minimum hold keeps the released row
--   from expiring: without a holder there is no grant to recognize.
-- * A recognized grant is durable. With a synchronous standby, the commit of the first attempt may
--   have been cut off in its wait, so the grant may be on this server alone. The row changes again
--   (confirmed), and the commit of that change follows the first one in the log. While the first
--   attempt still waits for the standby, its row is locked, which looks busy.
-- * Queue order. While a smaller valid ticket waits, the lock is not for us, unless it could have been
--   granted for one and a half seconds. Then the queue skips the tickets before ours, which become
--   invalid. That time begins anew whenever the head finds the row locked (kept), because a guarded
--   transaction may outlive the release by any time. A ticket for several names is skipped only if
--   its client does not refresh it: the name is free while its caller waits for another one.
-- * Parameters are never joined with results: that would be quadratic.
-- * One plan for any number of names: behind a SELECT, the planner does not see how many there are.
--   Otherwise it plans a small number anew each time, which takes longer than the rest. The other
--   batch statements do the same.
WITH input AS MATERIALIZED (
    SELECT a.name, coalesce(a.holder, ($2::text[])[1]) AS holder, a.request::uuid AS request,
           coalesce(a.labels, ($4::text[])[1])::jsonb AS labels,
           coalesce(a.us, ($5::bigint[])[1]) AS us, coalesce(a.ticket, ($6::bigint[])[1]) AS ticket
    FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::text[]),
                (SELECT $5::bigint[]), (SELECT $6::bigint[])) AS a (name, holder, request, labels, us, ticket)
), seen AS MATERIALIZED (
    SELECT l.ctid, l.name, l.token, l.holder, l.expires_at, a.request,
           l.request IS NOT DISTINCT FROM a.request AS ours,
           a.ticket, l.ticket >= a.ticket AS invalid, l.capacity,
           (SELECT count(*) FROM pglock.lock_waiters AS w
            WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < a.ticket
              AND w.expires_at > clock_timestamp()) AS ahead
    FROM input AS a
    JOIN pglock.distributed_locks AS l ON l.name = a.name
), free AS MATERIALIZED (
    SELECT l.name, a.holder, a.request, a.labels, a.us, a.ticket
    FROM input AS a
    JOIN pglock.distributed_locks AS l ON l.name = a.name
    WHERE l.expires_at <= clock_timestamp()
      AND (l.capacity > 0) IS NOT TRUE
      AND l.request IS DISTINCT FROM a.request
      AND (NOT EXISTS (SELECT FROM pglock.lock_waiters AS w
                       WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < a.ticket
                         AND w.expires_at > clock_timestamp())
           OR greatest(l.ended_at, l.expires_at) <= clock_timestamp() - interval '1500 ms'
              AND coalesce((SELECT max(w.keep_until) FROM pglock.lock_waiters AS w
                            WHERE w.name = a.name AND w.ticket > l.ticket AND w.ticket < a.ticket) <= clock_timestamp(), true))
    ORDER BY l.name COLLATE "C"
    FOR UPDATE OF l SKIP LOCKED
), regranted AS (
    UPDATE pglock.distributed_locks AS l
    SET token = greatest(pglock.next_fencing_token(), l.token + 1), version = l.version % 9223372036854775807 + 1,
        ticket = CASE
            WHEN f.ticket < 9223372036854775807 THEN greatest(l.ticket, f.ticket)
            WHEN greatest(l.ended_at, l.expires_at) <= clock_timestamp() - interval '1500 ms' THEN coalesce((
                SELECT min(w.ticket) FROM pglock.lock_waiters AS w
                WHERE w.name = l.name AND w.ticket > l.ticket AND w.expires_at > clock_timestamp()), l.ticket)
            ELSE l.ticket END,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + f.us * interval '1 microsecond', release_request = NULL,
        last_holder = coalesce(l.holder, l.last_holder), last_end = CASE WHEN l.holder IS NULL THEN l.last_end ELSE 'expired' END,
        ended_at = CASE WHEN l.holder IS NULL THEN l.ended_at ELSE nullif(l.expires_at, '-infinity') END,
        request = f.request, holder = f.holder, labels = f.labels
    FROM free AS f
    WHERE l.name = f.name
    RETURNING l.name, l.token, l.expires_at
), kept AS (
    UPDATE pglock.lock_waiters AS w
    SET keep_until = clock_timestamp() + interval '1500 ms'
    WHERE w.ctid = ANY (ARRAY(
        SELECT v.ctid
        FROM seen AS s
        JOIN pglock.lock_waiters AS v ON v.name = s.name AND v.ticket = s.ticket
        WHERE s.ahead = 0 AND s.expires_at <= clock_timestamp() AND NOT s.ours AND NOT s.invalid
          AND s.name NOT IN (SELECT g.name FROM regranted AS g)
        FOR UPDATE OF v SKIP LOCKED))
), recognized AS MATERIALIZED (
    SELECT l.ctid
    FROM seen AS s
    JOIN pglock.distributed_locks AS l ON l.ctid = s.ctid
    WHERE s.ours AND l.request = s.request AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
    FOR NO KEY UPDATE OF l SKIP LOCKED
), confirmed AS (
    UPDATE pglock.distributed_locks AS l
    SET version = l.version % 9223372036854775807 + 1
    FROM recognized AS r
    WHERE l.ctid = r.ctid
    RETURNING l.name, l.token, l.expires_at
), bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true)
    WHERE (SELECT count(*) FROM input) > (SELECT count(*) FROM seen)
), inserted AS (
    INSERT INTO pglock.distributed_locks (name, token, version, holder, request, labels, acquired_at, expires_at)
    SELECT a.name, pglock.next_fencing_token(), 1, a.holder, a.request, a.labels,
           clock_timestamp(), clock_timestamp() + a.us * interval '1 microsecond'
    FROM bounded, input AS a
    WHERE NOT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = a.name)
    ORDER BY a.name COLLATE "C"
    ON CONFLICT (name) DO NOTHING
    RETURNING name, pglock.require_unpruned(token) AS token, expires_at
), won AS (
    SELECT name, token, expires_at FROM regranted
    UNION ALL
    SELECT name, token, expires_at FROM confirmed
    UNION ALL
    SELECT name, token, expires_at FROM inserted
), durable AS MATERIALIZED (
    SELECT pglock.commit_durably()
)
SELECT r.name, r.outcome, r.token, r.holder,
       CASE WHEN r.expires_at > clock_timestamp()
            THEN (extract(epoch FROM r.expires_at - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       r.ahead, r.invalid
FROM durable, (
    SELECT name, 'granted' AS outcome, token, NULL AS holder, expires_at, 0 AS ahead, false AS invalid FROM won
    UNION ALL
    SELECT name,
           CASE WHEN capacity IS NOT NULL THEN 'kind'
                WHEN ours AND (holder IS NULL OR expires_at <= clock_timestamp()) THEN 'spent' ELSE 'busy' END,
           token, CASE WHEN NOT ours THEN holder END, CASE WHEN NOT ours THEN expires_at END, coalesce(capacity, ahead), invalid
    FROM seen
) AS r
