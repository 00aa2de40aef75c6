-- Idempotency keys: one row a key, with the request's fingerprint and its result. See package once.
--
-- A row is started, done or failed. While it is started and without a live grant of its token, its
-- outcome is unknown; it never expires, because a second call could then repeat the effect. A call
-- in the caller's own transaction has no token: its row is done when others see it.
CREATE TABLE once_keys (
    key         lock_name   PRIMARY KEY,
    fingerprint bytea       NOT NULL CHECK (octet_length(fingerprint) = 32), -- SHA-256 of what the caller passes to tell requests apart
    state       text        NOT NULL CHECK (state IN ('started', 'done', 'failed')),
    result      bytea       CHECK (octet_length(result) <= 1048576),
    token       bigint      CHECK (token > 0), -- of the attempt; null for calls in a transaction of the caller
    holder      text        CHECK (octet_length(holder) BETWEEN 1 AND 512),
    created_at  finite_time NOT NULL,
    started_at  finite_time NOT NULL, -- of the last attempt; created_at is of the first
    expires_at  finite_time, -- then the key may be used again
    CHECK (CASE WHEN state = 'started' THEN expires_at IS NULL AND result IS NULL ELSE expires_at IS NOT NULL END)
) WITH (
    fillfactor = 70
);

COMMENT ON TABLE once_keys IS 'pglock: one row an idempotency key, with the answer to its request';

-- For once_started, which monitoring reads often: there may be millions of keys with an outcome. A key's
-- first update, to its outcome, is no heap-only one for that.
CREATE INDEX once_unfinished ON once_keys (started_at) WHERE state = 'started';

-- The effects that have begun and have no outcome yet. Tokens are unique among all names, so the
-- attempt's grant is found by its token.
CREATE VIEW once_started AS
SELECT k.key, k.token, k.holder, k.created_at, k.started_at,
       EXISTS (SELECT FROM distributed_locks AS l
               WHERE l.token = k.token AND l.holder IS NOT NULL AND l.expires_at > pg_catalog.clock_timestamp()) AS running
FROM once_keys AS k
WHERE k.state = 'started';
COMMENT ON VIEW once_started IS 'pglock: effects that have begun; if not running, their outcome is unknown';

-- Records that the effect of a key begins, or returns the row that is in the way.
--
--   once_fingerprint  32 bytes
--   wait_ms           bound of the wait for another transaction that inserts the key; null for none
--   lock_name,        the grant that the effect runs under, which stays current until this
--   grant_token,      transaction ends; null in a transaction of the caller
--   holder_name
--   instead_of        the token of an earlier attempt that this one replaces, or null
--
-- claimed: the row is the caller's. Otherwise the rest describes it, with the result for the same
-- fingerprint only.
--
-- Why it is safe:
-- * The INSERT waits for another transaction that has inserted the row. At READ COMMITTED the next
--   SELECT finds it if it was committed. At a stricter isolation the INSERT, or the UPDATE, fails
--   with 40001.
-- * An attempt of Do inserts or replaces a row only while its grant is current (guard), so a paused
--   holder can't replace the attempt of a newer one.
-- * A repeated call with the same token finds its own row: the answer to the first may be lost.
-- * A grant's record is durable before the effect begins, also with synchronous_commit off.
CREATE FUNCTION once_claim(
    once_key text, once_fingerprint bytea, wait_ms bigint,
    lock_name text, grant_token bigint, holder_name text, instead_of bigint,
    OUT claimed boolean, OUT same boolean, OUT state text, OUT result bytea,
    OUT token bigint, OUT holder text, OUT started_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    expired boolean; -- null without a row
    before  text := current_setting('lock_timeout');
BEGIN
    IF grant_token IS NOT NULL THEN
        PERFORM "<here>".guard(lock_name, grant_token);
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
    END IF;
    LOOP
        SELECT coalesce(k.expires_at <= clock_timestamp(), false), k.fingerprint = once_fingerprint, k.state,
               CASE WHEN k.fingerprint = once_fingerprint THEN k.result END, k.token, k.holder, k.started_at
        INTO expired, same, state, result, token, holder, started_at
        FROM "<here>".once_keys AS k WHERE k.key = once_key;
        IF expired IS FALSE AND (same AND state = 'started' AND token = instead_of) IS NOT TRUE THEN
            claimed := coalesce(same AND state = 'started' AND token = grant_token, false);
            RETURN;
        END IF;
        IF wait_ms IS NOT NULL THEN -- a shorter limit of the caller stays in force
            PERFORM set_config('lock_timeout', least(greatest(wait_ms, 1), 2147483647,
                CASE WHEN before <> '0' THEN ceil(extract(epoch FROM before::interval) * 1000)::bigint END)::text, true);
        END IF;
        same := true; state := 'started'; result := NULL; token := grant_token; holder := holder_name; started_at := clock_timestamp();
        IF expired IS NULL THEN
            INSERT INTO "<here>".once_keys AS k (key, fingerprint, state, token, holder, created_at, started_at)
            VALUES (once_key, once_fingerprint, 'started', grant_token, holder_name, started_at, started_at)
            ON CONFLICT ON CONSTRAINT once_keys_pkey DO NOTHING;
        ELSE
            UPDATE "<here>".once_keys AS k
            SET fingerprint = once_fingerprint, state = 'started', result = NULL, token = grant_token, holder = holder_name,
                created_at = CASE WHEN expired THEN once_claim.started_at ELSE k.created_at END,
                started_at = once_claim.started_at, expires_at = NULL
            WHERE k.key = once_key AND CASE WHEN expired THEN k.expires_at <= clock_timestamp() ELSE k.state = 'started' AND k.token = instead_of END;
        END IF;
        claimed := FOUND;
        PERFORM set_config('lock_timeout', before, true) WHERE wait_ms IS NOT NULL;
        EXIT WHEN claimed;
        instead_of := CASE WHEN expired IS FALSE THEN NULL ELSE instead_of END;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION once_claim FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 8';
