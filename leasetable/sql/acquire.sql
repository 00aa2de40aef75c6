-- Grants the name $1 to holder $2 for $5 microseconds, if it is free.
--
--   $3  the request: one value for all attempts of one acquire
--   $4  labels, jsonb
--
-- Returns one row: outcome, token, version, holder, remaining microseconds.
--   granted  the grant is ours: token, version and what remains of it
--   busy     somebody else's: its token, version, holder and what remains of it;
--            holder null and nothing remaining: free, but its row is locked
--   raced    the row came into being meanwhile: ask again
--   spent    this request won before and its grant has ended: ask with a new one
--
-- Why it is safe:
-- * One winner. An existing row is locked before it is judged free (free), a new
--   one is decided by the primary key (first).
-- * Token order. The token is drawn while the row is locked (again), or, for a new
--   row, while pruning is kept out (gate): a stalled insert then meets the row of
--   whoever overtook it and loses.
-- * No waiting. SKIP LOCKED: a row that a guarded transaction holds is busy.
-- * Losing is free. On a held lock nothing is locked and nothing written.
-- * Repeating it is safe. A request whose grant lives gets that grant again; once
--   that grant has ended, an attempt that was stuck on the way can't win it back.
-- * The clock is the server's, read when the row is in our hands; now() would be
--   the start of the transaction.
-- * A grant must survive a crash, whatever synchronous_commit says here.
WITH seen AS MATERIALIZED (
    SELECT token, version, holder, request, expires_at
    FROM pglock.distributed_locks
    WHERE name = $1::text
), free AS MATERIALIZED (
    SELECT
    FROM pglock.distributed_locks
    WHERE name = $1::text
      AND expires_at <= clock_timestamp()
      AND request IS DISTINCT FROM $3::text::uuid
    FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE pglock.distributed_locks AS l
    SET token = pglock.next_fencing_token(), version = l.version + 1,
        holder = $2::text, request = $3::text::uuid, labels = $4::text::jsonb,
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + $5::bigint * interval '1 microsecond'
    FROM free
    WHERE l.name = $1::text
    RETURNING l.token, l.version, l.expires_at
), gate AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(pglock.prune_gate())
    WHERE NOT EXISTS (SELECT FROM seen)
), first AS (
    INSERT INTO pglock.distributed_locks (name, token, version, holder, request, labels, acquired_at, expires_at)
    SELECT $1::text, pglock.next_fencing_token(), 1, $2::text, $3::text::uuid, $4::text::jsonb,
           clock_timestamp(), clock_timestamp() + $5::bigint * interval '1 microsecond'
    FROM gate
    ON CONFLICT (name) DO NOTHING
    RETURNING token, version, expires_at
), won AS (
    SELECT token, version, expires_at FROM again
    UNION ALL
    SELECT token, version, expires_at FROM first
)
SELECT CASE
           WHEN w.token IS NOT NULL THEN 'granted'
           WHEN s.token IS NULL THEN 'raced'
           WHEN s.request IS DISTINCT FROM $3::text::uuid THEN 'busy'
           WHEN s.expires_at > clock_timestamp() THEN 'granted'
           ELSE 'spent'
       END,
       coalesce(w.token, s.token, 0),
       coalesce(w.version, s.version, 0),
       CASE WHEN w.token IS NULL THEN s.holder END,
       CASE WHEN coalesce(w.expires_at, s.expires_at) > clock_timestamp()
            THEN (extract(epoch FROM coalesce(w.expires_at, s.expires_at) - clock_timestamp()) * 1000000)::bigint
            ELSE 0 END,
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', true) END IS NOT NULL
FROM (SELECT) AS one
LEFT JOIN won AS w ON true
LEFT JOIN seen AS s ON true
