-- Fencing: functions that check and bind a grant, high-water marks, rights, protected tables.
--
-- Functions that run with their owner's rights see pg_catalog only: no operator, function or table
-- of another schema can take part in them. docs/reference/sql.md lists the SQLSTATEs of class PG.
--
-- Settings that end with the transaction hold what it has bound. Their names carry this
-- schema's name, so that a grant of another schema does not count here:
--   pglock.grants_<schema>  a seal of 64 characters, then what it seals, a JSON object:
--                           "lock" is the lock that was bound last, "grants" has the token of each
--   pglock.token_<schema>   the token that was bound last
--   pglock.stamp_<schema>   the token for the row that is being written
-- Any role can set them. The seal shows that bind() has set the grants. The other two decide nothing:
-- a trigger that reads the token compares it with what is sealed.

SELECT set_config('check_function_bodies', 'off', true);

CREATE TABLE fencing_high_water (
    resource text COLLATE pg_catalog."C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 512),
    token    bigint NOT NULL CHECK (token > 0)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.05
);
COMMENT ON TABLE fencing_high_water IS 'pglock: the highest token that a resource has seen; lower ones are refused';

-- The key of fencing_seal(). Only the owner of the tables may read it: see revoke_defaults().
CREATE TABLE fencing_secret (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    secret bytea   NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
);
INSERT INTO fencing_secret DEFAULT VALUES;
COMMENT ON TABLE fencing_secret IS 'pglock: a role that reads this can write to protected tables without a grant';

-- The seal: a keyed hash of what a transaction has bound. It holds for this transaction of this
-- backend of this server process only, so a copy is invalid anywhere else, also in a copy of the
-- database. SHA-384 shows two thirds of its state, so a known seal can't be extended. Only
-- functions with their owner's rights know the key. They inline this function and the next one, so
-- everything in these is qualified.
CREATE FUNCTION fencing_seal(key bytea, bound text) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.encode(pg_catalog.sha384(key OPERATOR(pg_catalog.||) pg_catalog.convert_to(
        pg_catalog.concat_ws(' ', pg_catalog.pg_current_xact_id(), pg_catalog.pg_backend_pid(),
            (pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, bound), 'UTF8')), 'base64')
$$;

-- Returns what the setting of the grants holds: one row if bind() has set it in this transaction,
-- and otherwise none. With OFFSET 0 nothing is read as JSON before its seal is checked.
CREATE FUNCTION unsealed(noted text) RETURNS SETOF jsonb
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT pg_catalog.substr(noted, 65)::pg_catalog.jsonb FROM "<here>".fencing_secret AS s
    WHERE pg_catalog.left(noted, 64) OPERATOR(pg_catalog.=) "<here>".fencing_seal(s.secret, pg_catalog.substr(noted, 65)) OFFSET 0
$$;

-- Clients may invent names, and no mark is safe to delete. The owner may replace this function.
-- About 10 million resources fit into 1 GB.
CREATE FUNCTION high_water_limit() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1073741824';
COMMENT ON FUNCTION high_water_limit() IS 'pglock: how large fencing_high_water may become, in bytes; then new resources are refused';

CREATE FUNCTION raise_stale(resource text, token bigint, newest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'PGL01',
        MESSAGE = CASE
            WHEN newest > 0 AND newest <> token THEN format('pglock: stale grant: %s of "%s", the newest is %s', token, resource, newest)
            WHEN newest = token THEN format('pglock: stale grant: %s of "%s" has ended', token, resource)
            ELSE format('pglock: stale grant: "%s" has no grant %s', resource, token) END,
        DETAIL = jsonb_build_object('resource', resource, 'token', token, 'current', newest)::text,
        HINT = 'Roll back. Somebody else may hold the lock.';
END
$$;

CREATE FUNCTION require_fence(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (octet_length(lock_name) BETWEEN 1 AND 512 AND grant_token > 0) IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL08',
            MESSAGE = format('pglock: no grant is %s of %s: tokens begin at 1, and names have 1 to 512 bytes',
                             coalesce(grant_token::text, 'NULL'), coalesce(quote_literal(lock_name), 'NULL'));
    END IF;
END
$$;

-- Returns the smaller of ms and the current idle_in_transaction_session_timeout, where 0 means none.
-- The planner inlines it, also in bind, so everything in it is qualified.
CREATE FUNCTION idle_limit(ms bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT least(ms, 2147483647, CASE WHEN pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.<>) '0' THEN
        (pg_catalog.date_part('epoch', pg_catalog.current_setting('idle_in_transaction_session_timeout')::pg_catalog.interval)
            OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8 END)::pg_catalog.text
$$;

-- Locks the grant until the end of the transaction, if it is current. A rollback to a savepoint that
-- was set before the call gives the lock up.
--
-- FOR KEY SHARE: a takeover locks the row FOR UPDATE with SKIP LOCKED, so it finds the lock busy
-- until the end of this transaction, and a renewal does not conflict. The clock is read after the
-- row is locked, because the lease may expire during a wait for the row. A permit without a holder
-- is one that was released, and expired with that.
--
-- A holder that is paused inside its transaction would block all others until it resumes. So the
-- server ends this transaction when it has been idle for the rest of the lease.
--
-- SECURITY DEFINER: writers need no right on the lock table, not even to lock its rows.
CREATE FUNCTION check_fence(lock_name text, grant_token bigint,
                            OUT is_current boolean, OUT newest bigint, OUT isolation text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ends timestamptz;
    ms   bigint;
BEGIN
    SELECT l.expires_at INTO ends
    FROM "<here>".distributed_locks AS l
    WHERE l.name = lock_name AND l.token = grant_token AND (l.holder IS NOT NULL OR "<here>".by_index()) AND l.expires_at > clock_timestamp()
    FOR KEY SHARE;
    IF NOT FOUND THEN
        SELECT p.expires_at INTO ends
        FROM "<here>".lock_permits AS p
        WHERE p.name = lock_name AND p.token = grant_token AND p.expires_at > clock_timestamp()
        FOR KEY SHARE;
    END IF;
    ms := ceil(extract(epoch FROM ends - clock_timestamp()) * 1000);
    is_current := coalesce(ms > 0 AND grant_token > 0, false);
    isolation := current_setting('transaction_isolation');
    IF is_current THEN
        PERFORM set_config('idle_in_transaction_session_timeout', "<here>".idle_limit(ms), true);
        newest := grant_token;
    ELSE
        PERFORM "<here>".require_fence(lock_name, grant_token);
        newest := coalesce((SELECT l.token FROM "<here>".distributed_locks AS l WHERE l.name = lock_name), 0);
    END IF;
END
$$;
COMMENT ON FUNCTION check_fence(text, bigint) IS 'pglock: hold a grant until the end of the transaction, if it is current; tells whether it is';

-- Like check_fence, but fails if the grant is not current. That stops the statements that follow in
-- the transaction or in the same pipeline.
CREATE FUNCTION guard(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
BEGIN
    SELECT * INTO c FROM "<here>".check_fence(lock_name, grant_token);
    IF c.is_current THEN
        RETURN;
    END IF;
    IF c.isolation <> 'read committed' AND c.newest <= grant_token THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('pglock: the snapshot may be too old to tell whether %s of "%s" is the current grant', grant_token, lock_name),
            HINT = 'Make it the first statement of the transaction, or use READ COMMITTED.';
    END IF;
    PERFORM "<here>".raise_stale(lock_name, grant_token, c.newest);
END
$$;
COMMENT ON FUNCTION guard(text, bigint) IS 'pglock: hold a grant until the end of the transaction, or fail with PGL01';

-- Like guard, and lets the transaction write to protected tables as that grant. Most transactions
-- of a holder begin with it, so it repeats the check of check_fence, and qualifies everything
-- instead of setting search_path, which would cost a tenth of its time.
CREATE FUNCTION bind(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    ends   pg_catalog.timestamptz;
    ms     pg_catalog.int8;
    key    pg_catalog.bytea;
    before pg_catalog.text := pg_catalog.current_setting('pglock.grants_<schema>', true);
    idle   pg_catalog.text;
    bound  pg_catalog.text;
BEGIN
    SELECT l.expires_at, s.secret INTO ends, key
    FROM "<here>".distributed_locks AS l, "<here>".fencing_secret AS s
    WHERE l.name OPERATOR(pg_catalog.=) lock_name AND l.token OPERATOR(pg_catalog.=) grant_token
      AND (l.holder IS NOT NULL OR "<here>".by_index()) AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
    FOR KEY SHARE OF l;
    -- Read the clock only after the row is locked.
    ms := pg_catalog.ceil(pg_catalog.date_part('epoch', ends OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000);
    IF (ms OPERATOR(pg_catalog.>) 0 AND grant_token OPERATOR(pg_catalog.>) 0) IS NOT TRUE THEN
        PERFORM "<here>".guard(lock_name, grant_token); -- knows why not, and bounds the idling otherwise
        idle := pg_catalog.current_setting('idle_in_transaction_session_timeout');
        INSERT INTO "<here>".fencing_secret DEFAULT VALUES ON CONFLICT DO NOTHING; -- a test suite may have truncated all tables
        SELECT s.secret INTO STRICT key FROM "<here>".fencing_secret AS s;
        IF NOT EXISTS (SELECT FROM "<here>".distributed_locks AS l
                       WHERE l.name OPERATOR(pg_catalog.=) lock_name AND l.token OPERATOR(pg_catalog.=) grant_token
                         AND (l.capacity IS NULL OR l.holder IS NOT NULL)) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL10',
                MESSAGE = pg_catalog.format('pglock: the grant %s of "%s" is one of several at the same time', grant_token, lock_name),
                HINT = 'Concurrent holders have no order. Use guard(), or acquire the lock exclusively.';
        END IF;
    END IF;
    bound := pg_catalog.format('{"lock": %1$s, "grants": {%1$s: %2$s}}', pg_catalog.to_json(lock_name), grant_token);
    IF before OPERATOR(pg_catalog.<>) '' THEN
        -- Keep grants that were bound before. Drop settings without a valid seal.
        bound := pg_catalog.jsonb_set(bound::pg_catalog.jsonb, '{grants}', coalesce((SELECT u OPERATOR(pg_catalog.->) 'grants' FROM "<here>".unsealed(before) AS u), '{}')
            OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object(lock_name, grant_token));
    END IF;
    -- An assignment costs less than a PERFORM.
    bound := pg_catalog.set_config('idle_in_transaction_session_timeout', coalesce(idle, "<here>".idle_limit(ms)), true)
             OPERATOR(pg_catalog.||) pg_catalog.set_config('pglock.grants_<schema>', "<here>".fencing_seal(key, bound) OPERATOR(pg_catalog.||) bound, true)
             OPERATOR(pg_catalog.||) pg_catalog.set_config('pglock.token_<schema>', grant_token::pg_catalog.text, true);
END
$$;
COMMENT ON FUNCTION bind(text, bigint) IS 'pglock: guard, and write to protected tables as that grant until the end of the transaction';

-- Fails unless the transaction has bound the grant. Batch sends it last. The statements of the batch
-- could forge the settings, but that would deceive only their own sender.
CREATE FUNCTION require_bound(lock_name text, grant_token bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF (pg_catalog.current_setting('pglock.grants_<schema>', true) OPERATOR(pg_catalog.<>) '') IS TRUE THEN
        IF (pg_catalog.substr(pg_catalog.current_setting('pglock.grants_<schema>', true), 65)::pg_catalog.jsonb
            OPERATOR(pg_catalog.->) 'grants' OPERATOR(pg_catalog.->>) lock_name)
           OPERATOR(pg_catalog.=) grant_token::pg_catalog.text THEN
            RETURN;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'PGL02',
        MESSAGE = pg_catalog.format('pglock: this is not the transaction that has bound %s of "%s"', grant_token, lock_name);
END
$$;
COMMENT ON FUNCTION require_bound(text, bigint) IS 'pglock: fail unless this transaction has bound a grant';

-- The same token may come again. It blocks later tokens until the end of the transaction. A
-- transaction that comes with the mark's own token locks the row FOR SHARE. All others lock it
-- exclusively at once, so that two of them can't deadlock.
CREATE FUNCTION advance(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark bigint;
BEGIN
    PERFORM "<here>".require_fence(advance.resource, advance.token);
    PERFORM FROM "<here>".fencing_high_water AS h
    WHERE h.resource = advance.resource AND h.token = advance.token
    FOR SHARE;
    IF FOUND THEN
        RETURN;
    END IF;
    -- The row may still be locked FOR SHARE: it had this token when the statement above began to wait.
    -- Two such transactions would deadlock if both asked for an exclusive lock.
    SELECT h.token INTO mark FROM "<here>".fencing_high_water AS h WHERE h.resource = advance.resource;
    IF mark > advance.token THEN
        PERFORM "<here>".raise_stale(advance.resource, advance.token, mark);
    END IF;
    IF mark IS NULL AND pg_relation_size((SELECT h.tableoid FROM "<here>".fencing_high_water AS h LIMIT 1)::regclass) >= "<here>".high_water_limit() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL09',
            MESSAGE = format('pglock: the table of marks is full, and "%s" is new', advance.resource),
            HINT = 'Delete marks of resources that no holder of an older token can still write, or replace high_water_limit().';
    END IF;
    INSERT INTO "<here>".fencing_high_water AS h (resource, token)
    VALUES (advance.resource, advance.token)
    ON CONFLICT ON CONSTRAINT fencing_high_water_pkey DO UPDATE
        SET token = excluded.token
        WHERE h.token < excluded.token;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT h.token INTO mark FROM "<here>".fencing_high_water AS h WHERE h.resource = advance.resource; -- locked by now
    IF mark <> advance.token THEN
        PERFORM "<here>".raise_stale(advance.resource, advance.token, mark);
    END IF;
END
$$;
COMMENT ON FUNCTION advance(text, bigint) IS 'pglock: raise the mark of a resource to this token, or fail with PGL01 if it is higher';

-- What package schedule keeps of a job beside its last tick, all times in microseconds since 1970. A row
-- is written under the job's lease, except triggered, and is never pruned.
CREATE TABLE scheduled_jobs (
    job         lock_name PRIMARY KEY,
    failed_tick bigint,  -- the last tick whose run has failed
    attempts    integer, -- how often it has
    error       text CHECK (octet_length(error) <= 512), -- of its last run
    triggered   bigint   -- the last extra tick that trigger_job has made
) WITH (fillfactor = 70);
COMMENT ON TABLE scheduled_jobs IS 'pglock: the failed runs of the jobs of package schedule, and their extra ticks';

-- The jobs of package schedule. A job's last tick is a mark, in microseconds since 1970, of a resource
-- with its name; its lock has the tick that is being run, and the one after it as far as its runner knows it.
-- A tick that has failed is later than the last tick while it may be repeated.
-- Anybody may write a mark or a label, so none of them may make the view fail.
CREATE VIEW schedules WITH (security_barrier) AS
SELECT job, h.at AS last_tick, left(l.labels ->> 'next', 512) AS next_tick, left(x.running, 512) AS running, left(x.holder, 512) AS holder,
       left(l.labels ->> 'timezone', 512) AS timezone, CASE WHEN j.at >= h.at OR h.at IS NULL THEN j.at END AS failed_tick,
       CASE WHEN j.at >= h.at OR h.at IS NULL THEN j.attempts END AS attempts, CASE WHEN j.at >= h.at OR h.at IS NULL THEN j.error END AS error,
       CASE WHEN j.extra > h.at OR h.at IS NULL THEN j.extra END AS triggered
FROM (SELECT substr(w.resource, length('last tick: ') + 1) AS job, CASE WHEN w.token < 253402300800000000 THEN to_timestamp(w.token / 1000000.0) END AS at
      FROM fencing_high_water AS w WHERE w.resource LIKE 'last tick: %') AS h
FULL JOIN (SELECT k.job::text AS job, k.attempts, k.error, CASE WHEN k.failed_tick BETWEEN 0 AND 253402300800000000 THEN to_timestamp(k.failed_tick / 1000000.0) END AS at,
                  CASE WHEN k.triggered BETWEEN 0 AND 253402300800000000 THEN to_timestamp(k.triggered / 1000000.0) END AS extra
           FROM scheduled_jobs AS k) AS j USING (job)
LEFT JOIN distributed_locks AS l ON l.name = job
LEFT JOIN LATERAL (SELECT l.labels ->> 'tick', l.holder
                   WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()) AS x (running, holder) ON true;
CREATE INDEX last_ticks ON fencing_high_water (resource) WHERE resource LIKE 'last tick: %'; -- there may be millions of marks
COMMENT ON VIEW schedules IS 'pglock: the jobs of package schedule that have run';
COMMENT ON COLUMN schedules.next_tick IS 'the tick after the last one that began, as its runner said, RFC 3339; null if unknown';
COMMENT ON COLUMN schedules.running IS 'the tick that is being run, RFC 3339; null if none is';
COMMENT ON COLUMN schedules.failed_tick IS 'the last tick, if it has failed, or a later one that has failed and may be repeated; null if none has';
COMMENT ON COLUMN schedules.triggered IS 'an extra tick that no process has run yet; null if there is none';

-- Returns the time, and what is known of a job, with 0 where nothing is.
-- SECURITY DEFINER: the marks of other resources are not for everyone.
CREATE FUNCTION job_state(job_name text, OUT at timestamptz, OUT last_tick bigint, OUT failed_tick bigint, OUT attempts integer, OUT triggered bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    SELECT clock_timestamp(), coalesce(h.token, 0), coalesce(j.failed_tick, 0), coalesce(j.attempts, 0), coalesce(j.triggered, 0)
    FROM (SELECT) AS one
    LEFT JOIN "<here>".fencing_high_water AS h ON h.resource = 'last tick: ' || job_name
    LEFT JOIN "<here>".scheduled_jobs AS j ON j.job = job_name
$$;
COMMENT ON FUNCTION job_state(text) IS 'pglock: the last tick of a job, the failures of the one after it, and its extra tick';

-- Makes an extra tick of a job, at the time of the call, which the next process that looks for ticks runs. It is
-- later than the last tick, so it is recorded like any other. If one is pending, it stays. The outcome is triggered,
-- which operator_actions has with the reason, or why nothing was done: running, unknown, or ahead if the last tick,
-- which is returned, is ahead of the clock by more than a minute, so that the job runs no tick.
CREATE FUNCTION trigger_job(job_name text, reason text DEFAULT '', OUT outcome text, OUT tick bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s      record;
    called bigint;
    latest bigint; -- any later tick is forged, or of a wrong clock
BEGIN
    SELECT * INTO s FROM "<here>".job_state(job_name);
    called := (extract(epoch FROM s.at) * 1000000)::bigint;
    latest := called + 60000000;
    IF s.last_tick = 0 AND NOT EXISTS (SELECT FROM "<here>".scheduled_jobs AS j WHERE j.job = job_name) THEN
        outcome := 'unknown';
    ELSIF EXISTS (SELECT FROM "<here>".distributed_locks AS l WHERE l.name = job_name AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()) THEN
        outcome := 'running';
    ELSIF s.last_tick > latest THEN
        outcome := 'ahead';
        tick := s.last_tick;
    ELSE
        INSERT INTO "<here>".scheduled_jobs AS j (job, triggered)
        VALUES (job_name, greatest(called, s.last_tick + 1))
        ON CONFLICT (job) DO UPDATE SET triggered = CASE WHEN j.triggered > s.last_tick AND j.triggered <= latest THEN j.triggered ELSE excluded.triggered END
        RETURNING 'triggered', j.triggered INTO outcome, tick;
        PERFORM "<here>".record_action(outcome, job_name, NULL, concat_ws(': ',
            'tick ' || to_char((timestamptz 'epoch' + tick * interval '1 microsecond') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            nullif(trigger_job.reason, '')));
    END IF;
END
$$;
COMMENT ON FUNCTION trigger_job(text, text) IS 'pglock: an extra run of a job of package schedule, by whichever process serves it';

-- Grants a role rights on the objects of these names that exist. It finds them in the catalog, so a
-- function that a stranger has left in the caller's search_path, or in this schema, runs with
-- nobody else's rights.
CREATE FUNCTION grant_on(role_name text, rights text, kind text, names text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    object text;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', '<here>', role_name);
    FOR object IN
        SELECT c.oid::regclass::text FROM pg_class AS c
        WHERE kind <> 'FUNCTION' AND c.relnamespace = '<here>'::regnamespace AND c.relname = ANY (names)
        UNION ALL
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE kind = 'FUNCTION' AND p.pronamespace = '<here>'::regnamespace AND p.proname = ANY (names)
    LOOP
        EXECUTE format('GRANT %s ON %s %s TO %I', rights, kind, object, role_name);
        -- GRANT only warns if the role has the right itself but may not grant it.
        IF NOT (CASE kind WHEN 'FUNCTION' THEN has_function_privilege(role_name, object, rights)
                          WHEN 'SEQUENCE' THEN has_sequence_privilege(role_name, object, rights)
                          ELSE has_table_privilege(role_name, object, rights) END) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('pglock: %I may not grant rights in schema %s to %I', current_user, '<here>', role_name);
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION', '{check_fence,guard,bind,require_bound,advance}');
END
$$;
COMMENT ON FUNCTION grant_writer(text) IS 'pglock: give a role what it needs to write as a holder';

-- Grants a role what it needs to acquire locks, to write as a holder, and to use idempotency keys.
-- A service that migrates when it starts reads pglock_migrations. Some administrators revoke
-- EXECUTE from PUBLIC.
CREATE FUNCTION grant_user(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_writer(role_name);
    PERFORM "<here>".grant_on(role_name, 'SELECT, INSERT, UPDATE, DELETE', 'TABLE',
        '{distributed_locks,lock_waiters,lock_permits,once_keys,nested_waits,scheduled_jobs}');
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'TABLE', '{locks_held,locks_waiting,once_started,schedules,operator_actions,pglock_migrations}');
    PERFORM "<here>".grant_on(role_name, 'USAGE', 'SEQUENCE', '{fencing_tokens}');
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION',
        '{highest_token,evidence_bound,lift_sequence,lift_fencing_tokens,raise_pruned,above_pruned,next_fencing_token,token_follows,wake_next,wake_each,advisory_key,
          pglock_schema_version,pglock_oldest_client,unsafe_server,head_weight,commit_durably,commit_lazily,by_index,next_version,queue,head_is_silent,check_slots,judge_slot,judge_slots,change_ticket,lock_gates,grant_slots,wake_opened,add_room,wake_for_room,free_expired_permits,share_grant,create_free,
          acquire_slots,release_permits,await_guards,keep_permits,upgrade_permits,resize_permits,record_action,next_ticket,once_claim,
          acquire,renew,release,wait_ticket,leave,watch,check_client,leave_queue,
          nested_wait,end_nested_wait,find_deadlock,wait_names,wait_edges,stuck_edges,cycle_words,job_state,trigger_job}');
END
$$;
COMMENT ON FUNCTION grant_user(text) IS 'pglock: give a role what it needs to acquire locks and to write as a holder';

-- Nothing of this delays or changes a grant.
CREATE FUNCTION grant_reader(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'TABLE',
        '{distributed_locks,lock_waiters,lock_permits,nested_waits,locks_held,locks_waiting,once_started,schedules,operator_actions,pglock_migrations}');
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'SEQUENCE', '{fencing_tokens}');
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION', '{pglock_schema_version,pglock_oldest_client,unsafe_server,highest_token,lift_fencing_tokens,advisory_key}');
END
$$;
COMMENT ON FUNCTION grant_reader(text) IS 'pglock: give a role what it needs to see locks';

CREATE FUNCTION revoke_role(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %s FROM %I', '<here>', role_name);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %s FROM %I', '<here>', role_name);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %s FROM %I', '<here>', role_name);
    EXECUTE format('REVOKE ALL ON SCHEMA %s FROM %I', '<here>', role_name);
END
$$;
COMMENT ON FUNCTION revoke_role(text) IS 'pglock: take away from a role what the grant functions gave it';

REVOKE EXECUTE ON FUNCTION check_fence, guard, bind, advance, fencing_seal, unsealed, job_state FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 5';
