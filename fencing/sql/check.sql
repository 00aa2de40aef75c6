-- Holds the grant of $1 with token $2 for this transaction, if it is current.
--
-- Returns one row: whether it is, the newest token of that name, and the transaction's
-- isolation level.
--
-- FOR KEY SHARE: token is in a unique index, so a takeover, which changes it,
-- waits for the end of this transaction, while a renewal, which does not, passes.
-- The lock is taken in a materialized CTE and the clock is read after it, because a
-- wait for the lock may have outlasted the lease.
--
-- A holder paused inside its transaction would keep everybody out for as long as
-- it sleeps. So the server ends this transaction once it has idled for what
-- remains of the lease; a shorter limit of the caller's own is kept.
WITH grant_row AS MATERIALIZED (
    SELECT expires_at
    FROM pglock.distributed_locks
    WHERE name = $1::text AND token = $2::bigint AND expires_at > clock_timestamp()
    FOR KEY SHARE
), live AS MATERIALIZED (
    SELECT ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint AS ms
    FROM grant_row
    WHERE expires_at > clock_timestamp()
), bound AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout',
        least(ms, 2147483647, nullif((extract(epoch FROM
            current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0))::text,
        true)
    FROM live
)
SELECT EXISTS (SELECT FROM bound),
       coalesce((SELECT token FROM pglock.distributed_locks WHERE name = $1::text), 0),
       current_setting('transaction_isolation')
