-- Fencing: functions that check and bind a grant, high-water marks, rights, protected tables.
--
-- Run it like the first file. Functions that run with their owner's rights see pg_catalog only: no
-- operator, function or table of another schema can take part in them.
--
-- SQLSTATEs of our own, class PG, which neither PostgreSQL nor the SQL standard uses:
--   PGL01  stale: the grant is not the current one, or a newer one has written
--   PGL02  unfenced: a write to a strictly protected table without a bound grant
--   PGL03  other lock: no grant is bound of the lock that the row belongs to
--   PGL04  no such table, or nothing that can be protected
--   PGL05  a column that does not fit
--   PGL06  protected already, with other options
--   PGL07  an option that makes no sense
--   PGL08  not a fence: a name or token that no grant can have
--   PGL09  the table of marks is full, and this resource is new
--   PGL10  a shared grant, of a semaphore or a reader, can't be bound
-- The DETAIL of PGL01 and PGL03 is JSON, for programs.
--
-- Settings that end with the transaction hold what it has bound. Their names carry this
-- schema's name, so that a grant of another schema does not count here:
--   pglock.grants_<schema>  a seal of 64 characters, then what it seals, a JSON object:
--                           "lock" is the lock that was bound last, "grants" has the token of each
--   pglock.token_<schema>   the token that was bound last
--   pglock.stamp_<schema>   the token for the row that is being written
-- Any role can set them. The seal shows that bind() has set the grants. The other two decide nothing:
-- a trigger that reads the token compares it with what is sealed.

SELECT set_config('check_function_bodies', 'off', true); -- they may name "<here>", until pin_functions() runs

-- The highest token that each resource has seen, for resources without a token column.
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
-- database. SHA-384 shows two thirds of its state, so a known seal can't be extended, and one call
-- is enough. Only functions with their owner's rights know the key. They inline this function and
-- the next one, so everything in these is qualified.
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

-- The maximum size of the table of marks, in bytes. Clients may invent names, and no mark is safe to
-- delete. The owner may replace this function. About 10 million resources fit into 1 GB.
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

-- Locks the grant until the end of the transaction, if it is current.
--
-- FOR KEY SHARE: a takeover locks the row FOR UPDATE, so it waits for the end of this
-- transaction. A renewal does not, and does not wait. The clock is read after the row is locked,
-- because the lease may expire during a wait for the row. A released lock has no holder, even if it
-- is not free yet.
--
-- A holder that is paused inside its transaction would block all others until it resumes. So the
-- server ends this transaction when it has been idle for the rest of the lease. A shorter limit of
-- the caller stays in force.
--
-- SECURITY DEFINER: writers need no right on the lock table, not even to lock its rows.
CREATE FUNCTION check_fence(lock_name text, grant_token bigint,
                            OUT is_current boolean, OUT newest bigint, OUT isolation text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ends timestamptz;
    ms   bigint;
BEGIN
    SELECT l.expires_at INTO ends
    FROM "<here>".distributed_locks AS l
    WHERE l.name = lock_name AND l.token = grant_token AND (l.holder IS NOT NULL OR "<here>".never()) AND l.expires_at > clock_timestamp()
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

-- Like guard, and lets the transaction write to protected tables as that grant. Most transactions of
-- a holder begin with it, so it repeats the check of check_fence and has no search_path of its own,
-- which would cost a tenth of its time. Instead everything in it is qualified.
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
      AND (l.holder IS NOT NULL OR "<here>".never()) AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
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

-- Raises the mark of a resource. The same token may come again. It blocks later tokens until the end
-- of the transaction.
--
-- A transaction that comes with the mark's own token locks the row FOR SHARE. All others lock it
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
    IF pg_relation_size((SELECT h.tableoid FROM "<here>".fencing_high_water AS h LIMIT 1)::regclass) >= "<here>".high_water_limit()
       AND NOT EXISTS (SELECT FROM "<here>".fencing_high_water AS h WHERE h.resource = advance.resource) THEN
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

-- The jobs of package schedule. A job's last tick is a mark, in microseconds since 1970, of a resource
-- with its name; its lock has the tick that is being run, and the one after it as far as its runner knows it.
-- Anybody may write a mark or a label, so none of them may make the view fail.
CREATE VIEW schedules WITH (security_barrier) AS
SELECT substr(h.resource, length('last tick: ') + 1) AS job,
       CASE WHEN h.token < 253402300800000000 THEN to_timestamp(h.token / 1000000.0) END AS last_tick,
       left(l.labels ->> 'next', 512) AS next_tick, left(x.running, 512) AS running, left(x.holder, 512) AS holder
FROM fencing_high_water AS h
LEFT JOIN distributed_locks AS l ON l.name = substr(h.resource, length('last tick: ') + 1)
LEFT JOIN LATERAL (SELECT l.labels ->> 'tick', l.holder
                   WHERE l.holder IS NOT NULL AND l.expires_at > clock_timestamp()) AS x (running, holder) ON true
WHERE h.resource LIKE 'last tick: %';
CREATE INDEX last_ticks ON fencing_high_water (resource) WHERE resource LIKE 'last tick: %'; -- there may be millions of marks
COMMENT ON VIEW schedules IS 'pglock: the jobs of package schedule that have run';
COMMENT ON COLUMN schedules.next_tick IS 'the tick after the last one that began, as its runner said, RFC 3339; null if unknown';
COMMENT ON COLUMN schedules.running IS 'the tick that is being run, RFC 3339; null if none is';

-- Grants a role rights on the objects of these names that exist. It finds them in the catalog, and
-- nothing here depends on the caller's search_path. So a function that a stranger has left in that
-- path, or in this schema, runs with nobody else's rights.
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

-- Grants a role what it needs to check fences and to write as a holder.
CREATE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION', '{check_fence,guard,bind,require_bound,advance}');
END
$$;
COMMENT ON FUNCTION grant_writer(text) IS 'pglock: give a role what it needs to write as a holder';

-- Grants a role what it needs to acquire locks, to write as a holder, and to use idempotency keys. A
-- service that migrates when it starts reads pglock_migrations, to see that there is nothing to do.
-- PUBLIC usually has EXECUTE on most of these functions. Some administrators revoke it.
CREATE FUNCTION grant_user(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_writer(role_name);
    PERFORM "<here>".grant_on(role_name, 'SELECT, INSERT, UPDATE, DELETE', 'TABLE',
        '{distributed_locks,lock_waiters,lock_permits,once_keys,nested_waits}');
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'TABLE', '{locks_held,locks_waiting,once_started,schedules,pglock_migrations}');
    PERFORM "<here>".grant_on(role_name, 'USAGE', 'SEQUENCE', '{fencing_tokens}');
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION',
        '{highest_token,evidence_bound,lift_sequence,lift_fencing_tokens,raise_pruned,next_fencing_token,token_follows,wake_next,wake_each,advisory_key,
          pglock_schema_version,pglock_oldest_client,unsafe_server,head_weight,commit_durably,never,add_room,wake_for_room,free_expired_permits,share_grant,create_free,
          acquire_slots,release_permits,await_guards,keep_permits,upgrade_permits,resize_permits,next_ticket,once_claim,
          acquire,renew,release,wait_ticket,leave,watch,check_client,renew_grants,join_queue,leave_queue,watch_name,
          nested_wait,end_nested_wait,find_deadlock}');
END
$$;
COMMENT ON FUNCTION grant_user(text) IS 'pglock: give a role what it needs to acquire locks and to write as a holder';

-- Grants a role what it needs to see locks, their waiters, idempotency keys without their results, and
-- schedules: nothing that delays or changes a grant.
CREATE FUNCTION grant_reader(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'TABLE',
        '{distributed_locks,lock_waiters,lock_permits,nested_waits,locks_held,locks_waiting,once_started,schedules,pglock_migrations}');
    PERFORM "<here>".grant_on(role_name, 'SELECT', 'SEQUENCE', '{fencing_tokens}');
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION', '{pglock_schema_version,pglock_oldest_client,unsafe_server,highest_token,lift_fencing_tokens,advisory_key}');
END
$$;
COMMENT ON FUNCTION grant_reader(text) IS 'pglock: give a role what it needs to see locks';

-- Takes away from a role all rights in this schema that this role has granted.
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

-- A role with USAGE on the schema can't hold rows of locks, raise marks or make seals, and no
-- table of its own blocks migrating down.
REVOKE EXECUTE ON FUNCTION check_fence(text, bigint), guard(text, bigint), bind(text, bigint), advance(text, bigint),
    fencing_seal(bytea, text), unsealed(text) FROM PUBLIC;
REVOKE USAGE ON TYPE fencing_high_water, fencing_secret FROM PUBLIC;

-- Protected tables: triggers that refuse writes without a grant, or with an old one.
--
-- A protected table and each of its partitions have these triggers:
--
--   zz_pglock_fence_stamp      before each row: puts the bound token into the token column
--   zz_pglock_fence_inserted,
--   _updated, _deleted         after each statement: judge the rows that it has written
--   zz_pglock_fence_truncate,
--   _truncate_rows             before TRUNCATE
--   zz_pglock_fence_attached   after each row of a partition that was attached later
--   zz_pglock_fence_zmoved     before each row of a partitioned table whose partition key changes
--   zz_pglock_fence_changed    after each row of a permissive table whose token changes
--
-- Only the triggers after the statement, and those of TRUNCATE, are trusted. The statement's own
-- expressions, and triggers of others, run between the rows: they may change settings and rows.
-- They can't change the transition tables, where the server keeps the replaced and the written rows.
-- When the triggers after the statement run, no expression of the statement runs any more.
--
-- These triggers compare the rows with what bind() has sealed. Each statement locks the grant's
-- row again, FOR KEY SHARE, and checks its token. So the fence holds even if a rollback to a savepoint
-- has released the row that bind() locked, and the sealed settings were restored by hand.
--
-- These functions run with their owner's rights. Nothing in them may run code of the writer or of
-- the table's owner:
--   * They read the transition tables, and never the table itself: planning a query on a table may
--     run functions of its indexes and constraints.
--   * They fail unless the token column is a bigint. Columns that name the lock go through concat(),
--     which calls the type's own output function and no cast.
--   * Columns that may be missing are written without their table: "o.c" calls a function c(o) if
--     there is no column c.
--   * They fail in a trigger without transition tables, where views in pg_temp with the names of the
--     transition tables would be found.
--
-- All triggers of a table have the same arguments:
--   token column, strict or permissive, template of the lock's name or '', added or kept (the
--   column), the token of a row without one ('' for NULL, '0', or keep), and the template's
--   parts: literal, column, literal, column ...

CREATE FUNCTION raise_unfenced(operation text, table_schema text, table_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'PGL02', SCHEMA = table_schema, TABLE = table_name,
        MESSAGE = format('pglock: unfenced %s of "%s"', operation, table_name),
        HINT = 'Bind the grant of a lock in this transaction first.';
END
$$;

-- Returns the SQL expression of the lock's name for a row, which is NULL if one of its columns is.
-- Everything in it is qualified. Names differ if their bytes differ, whatever the column's collation.
CREATE FUNCTION lock_name_expression(parts text[], prefix text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    missing pg_catalog.text := '';
    texts   pg_catalog.text := '';
BEGIN
    FOR i IN 1 .. pg_catalog.array_length(parts, 1) LOOP
        IF pg_catalog.mod(i, 2) OPERATOR(pg_catalog.=) 1 THEN
            texts := pg_catalog.format('%s, %L::pg_catalog.text', texts, parts[i]);
        ELSE
            texts := pg_catalog.format('%s, %s%I', texts, prefix, parts[i]);
            missing := pg_catalog.format('%s OR %s%I IS NULL', missing, prefix, parts[i]);
        END IF;
    END LOOP;
    RETURN pg_catalog.format('CASE WHEN %s THEN NULL ELSE pg_catalog.concat(%s) END COLLATE pg_catalog."C"',
                             pg_catalog.substr(missing, 5), pg_catalog.substr(texts, 3));
END
$$;

-- Returns the grants that this transaction has bound, or NULL. "lock" is the lock that was bound last,
-- "grants" has the token of each. It fails if bind() has not set the settings. This function and the
-- next one are called by others, with their rights and search_path.
CREATE FUNCTION bound_grants() RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    noted text := current_setting('pglock.grants_<schema>', true);
    bound jsonb;
BEGIN
    IF coalesce(noted, '') = '' THEN
        RETURN NULL;
    END IF;
    bound := (SELECT u FROM "<here>".unsealed(noted) AS u);
    IF bound IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL02',
            MESSAGE = 'pglock: unfenced write: the settings name a grant that this transaction has not bound',
            HINT = 'Bind the grant of a lock in this transaction first.';
    END IF;
    RETURN bound;
END
$$;

-- Refuses rows of one lock unless the transaction has bound its grant, and this is the current one
-- and stays so until the end of the transaction. It refuses a revoked grant too, because a transaction can
-- give up the row lock for which a revocation waits, by a savepoint, and keep its bound grant. replaced is the
-- highest token of the rows that were there, lowest and highest are the tokens of those that were written; NULL
-- for no rows.
CREATE FUNCTION judge_rows(grants jsonb, lock_name text, replaced bigint, lowest bigint, highest bigint,
                           operation text, table_schema text, table_name text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    bound bigint := grants ->> lock_name;
    other bigint;
BEGIN
    IF bound IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL03', SCHEMA = table_schema, TABLE = table_name,
            MESSAGE = format('pglock: %s of a row of "%s" that belongs to the lock "%s", of which no grant is bound',
                             operation, table_name, lock_name),
            DETAIL = jsonb_build_object('resource', lock_name)::text;
    END IF;
    PERFORM FROM "<here>".distributed_locks AS l
    WHERE l.name = lock_name AND l.token = bound AND l.revoked_token IS DISTINCT FROM bound FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM "<here>".raise_stale(lock_name, bound,
            coalesce((SELECT l.token FROM "<here>".distributed_locks AS l WHERE l.name = lock_name), 0));
    END IF;
    other := CASE WHEN replaced > bound THEN replaced WHEN lowest <> bound THEN lowest WHEN highest <> bound THEN highest END;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL01', SCHEMA = table_schema, TABLE = table_name,
            MESSAGE = format(CASE WHEN replaced > bound
                THEN 'pglock: stale grant: %s of "%s", and a row of "%s" was written with %s'
                ELSE 'pglock: stale grant: %s of "%s", and a row of "%s" is to have the token %s' END, bound, lock_name, table_name, other),
            DETAIL = jsonb_build_object('resource', lock_name, 'token', bound, 'current', other)::text,
            HINT = 'Roll back. Somebody else may hold the lock.';
    END IF;
END
$$;

-- After each statement: judges the rows in old_rows and new_rows.
CREATE FUNCTION fence_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    usual CONSTANT boolean := TG_ARGV[0] = 'fence_token'; -- then plans are kept, which halves the cost
    noted CONSTANT text    := coalesce(current_setting('pglock.grants_<schema>', true), '');
    token CONSTANT text    := current_setting('pglock.token_<schema>', true);
    type  oid; -- of the token column
    fine  boolean;
    b     jsonb;
    name  text;
    rows  text;
    done  text;
BEGIN
    -- Nothing has the name of a missing transition table while the session has no schema for
    -- temporary views. Then the catalog need not be asked, which would take a fifth of the time.
    IF usual AND pg_my_temp_schema() = 0 THEN
        IF TG_OP = 'DELETE' THEN
            SELECT pg_typeof(fence_token) INTO type FROM old_rows LIMIT 1;
        ELSE
            SELECT pg_typeof(fence_token) INTO type FROM new_rows LIMIT 1;
        END IF;
        IF NOT FOUND THEN
            b := "<here>".bound_grants(); -- a forged setting is refused even where it does nothing
            RETURN NULL;
        END IF;
    ELSE
        SELECT a.atttypid INTO type FROM pg_trigger AS t JOIN pg_attribute AS a ON a.attrelid = t.tgrelid
        WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME
          AND (TG_OP = 'DELETE' OR t.tgnewtable = 'new_rows') AND (TG_OP = 'INSERT' OR t.tgoldtable = 'old_rows')
          AND a.attname = TG_ARGV[0]::name AND a.attnum > 0;
    END IF;
    IF type <> 'bigint'::regtype OR type IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = TG_RELID AND a.attname = TG_ARGV[0]::name)
                THEN 'datatype_mismatch' ELSE 'undefined_column' END,
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: column "%s" is not a bigint any more, or trigger "%s" lacks its transition tables', TG_ARGV[0], TG_NAME);
    END IF;

    IF usual AND TG_ARGV[2] = '' AND noted <> '' THEN
        -- Any lock is accepted: the grant that was bound last writes. One query accepts the usual case.
        -- It checks the seal, locks the grant's row like judge_rows(), and reads each row once.
        IF TG_OP = 'INSERT' THEN
            SELECT NOT EXISTS (SELECT FROM new_rows AS n WHERE n.fence_token IS DISTINCT FROM l.token) INTO fine
            FROM "<here>".distributed_locks AS l
            WHERE l.token::text = token AND l.name = (SELECT u ->> 'lock' FROM "<here>".unsealed(noted) AS u WHERE u -> 'grants' ->> (u ->> 'lock') = token)
              AND (l.revoked_token IS DISTINCT FROM l.token OR "<here>".never())
            FOR KEY SHARE;
        ELSIF TG_OP = 'UPDATE' THEN
            SELECT NOT EXISTS (SELECT FROM new_rows AS n WHERE n.fence_token IS DISTINCT FROM l.token)
                   AND NOT EXISTS (SELECT FROM old_rows AS o WHERE o.fence_token > l.token) INTO fine
            FROM "<here>".distributed_locks AS l
            WHERE l.token::text = token AND l.name = (SELECT u ->> 'lock' FROM "<here>".unsealed(noted) AS u WHERE u -> 'grants' ->> (u ->> 'lock') = token)
              AND (l.revoked_token IS DISTINCT FROM l.token OR "<here>".never())
            FOR KEY SHARE;
        ELSE
            SELECT NOT EXISTS (SELECT FROM old_rows AS o WHERE o.fence_token > l.token) INTO fine
            FROM "<here>".distributed_locks AS l
            WHERE l.token::text = token AND l.name = (SELECT u ->> 'lock' FROM "<here>".unsealed(noted) AS u WHERE u -> 'grants' ->> (u ->> 'lock') = token)
              AND (l.revoked_token IS DISTINCT FROM l.token OR "<here>".never())
            FOR KEY SHARE;
        END IF;
        IF fine THEN
            RETURN NULL;
        END IF;
    END IF;

    b := "<here>".bound_grants();
    IF b IS NULL THEN
        IF TG_ARGV[1] = 'strict' THEN
            IF TG_OP = 'DELETE' THEN
                fine := NOT EXISTS (SELECT FROM old_rows);
            ELSE
                fine := NOT EXISTS (SELECT FROM new_rows);
            END IF;
        ELSIF TG_OP <> 'DELETE' THEN
            -- Without a grant the tokens must be those of the replaced rows.
            rows := format('SELECT n.%1$I FROM new_rows AS n WHERE n.%1$I <> 0', TG_ARGV[0]);
            IF TG_OP = 'UPDATE' THEN
                rows := rows || format(' EXCEPT ALL SELECT o.%1$I FROM old_rows AS o', TG_ARGV[0]);
            END IF;
            EXECUTE format('SELECT NOT EXISTS (%s)', rows) INTO fine;
        END IF;
        IF NOT fine THEN
            done := "<here>".raise_unfenced(TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
        END IF;
        RETURN NULL;
    END IF;

    name := CASE WHEN TG_ARGV[2] = '' THEN quote_literal(b ->> 'lock') || '::text' ELSE "<here>".lock_name_expression(TG_ARGV[5:], '') END;
    rows := concat_ws(' UNION ALL ',
        CASE WHEN TG_OP <> 'INSERT' THEN format('SELECT %s, o.%I, NULL::int8 FROM old_rows AS o', name, TG_ARGV[0]) END,
        CASE WHEN TG_OP <> 'DELETE' THEN format('SELECT %s, NULL::int8, coalesce(n.%I, 0) FROM new_rows AS n', name, TG_ARGV[0]) END);
    EXECUTE format('SELECT %s.judge_rows($1, x.name, max(x.replaced), min(x.written), max(x.written), $2, $3, $4)'
                   ' FROM (%s) AS x (name, replaced, written) GROUP BY x.name', '<here>', rows)
        USING b -> 'grants', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME;
    RETURN NULL;
END
$$;

-- Before each row: sets the token. It runs with the writer's rights and search_path, so everything in
-- it is qualified. In strict mode it refuses a write without a grant early. fence_rows() decides in
-- any case.
CREATE FUNCTION fence_stamp() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stamp pg_catalog.text;
BEGIN
    stamp := pg_catalog.current_setting(CASE WHEN TG_ARGV[2] OPERATOR(pg_catalog.=) '' THEN 'pglock.token_<schema>'
                                             ELSE 'pglock.stamp_<schema>' END, true);
    IF stamp OPERATOR(pg_catalog.<>) '' THEN
        IF TG_ARGV[0] OPERATOR(pg_catalog.=) 'fence_token' THEN -- as a rule: it takes half as long
            NEW.fence_token := stamp;
            RETURN NEW;
        END IF;
    ELSIF pg_catalog.current_setting('pglock.grants_<schema>', true) OPERATOR(pg_catalog.<>) '' THEN
        RETURN NEW; -- of a lock that is not bound
    ELSIF TG_ARGV[1] OPERATOR(pg_catalog.=) 'strict' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL02', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = pg_catalog.format('pglock: unfenced %s of "%s"', TG_OP, TG_TABLE_NAME),
            HINT = 'Bind the grant of a lock in this transaction first.';
    ELSIF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN
        EXECUTE pg_catalog.format('SELECT ($1).%I', TG_ARGV[0]) INTO stamp USING OLD;
    ELSIF TG_ARGV[4] OPERATOR(pg_catalog.=) 'keep' THEN
        RETURN NEW;
    ELSE
        stamp := CASE WHEN TG_ARGV[4] OPERATOR(pg_catalog.<>) '' THEN TG_ARGV[4] END;
    END IF;
    NEW := pg_catalog.jsonb_populate_record(NEW, pg_catalog.jsonb_build_object(TG_ARGV[0], stamp));
    RETURN NEW;
END
$$;

-- After each row of a partition that was attached after protect(). A statement on such a partition
-- would run none of the triggers after statements. The server gives each partition that is attached a
-- copy of this trigger. protect() disables the copies of those that have the other triggers, and a
-- copy ends when its partition is detached. So a partition that comes back is a new one.
CREATE FUNCTION fence_attached() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'PGL02', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
        MESSAGE = pg_catalog.format('pglock: unfenced %s of "%s", a partition that came after the table was protected', TG_OP, TG_TABLE_NAME),
        HINT = 'Protect the table again.';
END
$$;

-- Before an UPDATE that moves a row to another partition: judges the row. PostgreSQL 15 to 18 leave
-- rows that MERGE moves out of the transition tables, until a fix of November 2026. The seal makes
-- it safe to judge in the middle of a statement.
CREATE FUNCTION fence_moved() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    replaced bigint;
    written  bigint;
    b        jsonb;
    was      text;
    is_now   text;
    done     text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute AS a
                   WHERE a.attrelid = TG_RELID AND a.attname = TG_ARGV[0]::name AND a.attnum > 0 AND a.atttypid = 'bigint'::regtype) THEN
        RAISE EXCEPTION USING ERRCODE = 'datatype_mismatch', MESSAGE = format('pglock: column "%s" is not a bigint any more', TG_ARGV[0]);
    END IF;
    EXECUTE format('SELECT o.%1$I, coalesce(n.%1$I, 0) FROM (SELECT ($1).*) AS o, (SELECT ($2).*) AS n', TG_ARGV[0])
        INTO replaced, written USING OLD, NEW;
    b := "<here>".bound_grants();
    IF b IS NULL THEN
        IF TG_ARGV[1] = 'strict' OR coalesce(replaced, 0) <> written THEN
            done := "<here>".raise_unfenced(TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
        END IF;
        RETURN NEW;
    END IF;
    was := b ->> 'lock';
    is_now := was;
    IF TG_ARGV[2] <> '' THEN
        EXECUTE format('SELECT %s FROM (SELECT ($1).*) AS o', "<here>".lock_name_expression(TG_ARGV[5:], '')) INTO was USING OLD;
        EXECUTE format('SELECT %s FROM (SELECT ($1).*) AS o', "<here>".lock_name_expression(TG_ARGV[5:], '')) INTO is_now USING NEW;
    END IF;
    done := "<here>".judge_rows(b -> 'grants', was, replaced, NULL, NULL, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
    done := "<here>".judge_rows(b -> 'grants', is_now, NULL, written, written, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
    RETURN NEW;
END
$$;

-- After an UPDATE has changed the token of a row of a permissive table, which only a grant may do.
-- fence_rows() can't tell which of the old rows became which of the new ones.
CREATE FUNCTION fence_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF "<here>".bound_grants() IS NULL THEN
        PERFORM "<here>".raise_unfenced(TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
    END IF;
    RETURN NULL;
END
$$;

-- Before TRUNCATE: the checks of fence_rows() that need no rows.
CREATE FUNCTION fence_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b jsonb;
BEGIN
    b := "<here>".bound_grants();
    IF b IS NULL THEN
        IF TG_ARGV[1] = 'strict' THEN
            PERFORM "<here>".raise_unfenced(TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_ARGV[2] <> '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL03', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: TRUNCATE of "%s", whose rows belong to many locks', TG_TABLE_NAME),
            HINT = 'Delete the rows of your lock.';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: TRUNCATE of "%s" at %s: rows that the snapshot does not see would go, too',
                             TG_TABLE_NAME, current_setting('transaction_isolation')),
            HINT = 'Use READ COMMITTED, or delete the rows.';
    END IF;
    PERFORM "<here>".judge_rows(b -> 'grants', b ->> 'lock', NULL, NULL, NULL, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
    RETURN NULL;
END
$$;

-- Before TRUNCATE, after fence_truncate(): looks for rows of a newer grant. It reads the table, so it
-- runs with the rights of the role that truncates. No expression is evaluated between the two.
CREATE FUNCTION fence_truncate_rows() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    newest bigint;
    bound  jsonb  := nullif(substr(current_setting('pglock.grants_<schema>', true), 65), ''); -- fence_truncate() has seen the seal
    token  bigint := bound -> 'grants' ->> (bound ->> 'lock');
BEGIN
    IF bound IS NULL THEN
        RETURN NULL;
    END IF;
    IF NOT has_column_privilege(TG_RELID, TG_ARGV[0], 'SELECT') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: TRUNCATE of "%s" must see whether a newer grant has written', TG_TABLE_NAME),
            HINT = format('GRANT SELECT (%I) ON %s TO %I', TG_ARGV[0], TG_RELID::regclass, current_user);
    END IF;
    -- row_security is off in this function: a policy that hides rows is an error.
    EXECUTE format('SELECT max(%I) FROM %s', TG_ARGV[0], TG_RELID::regclass) INTO newest;
    IF (newest <= token) IS NOT TRUE AND newest IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL01', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: stale grant: %s, and a row of "%s" was written with %s', token, TG_TABLE_NAME, newest),
            DETAIL = jsonb_build_object('resource', TG_TABLE_NAME, 'token', token, 'current', newest)::text,
            HINT = 'Roll back. Somebody else may hold the lock.';
    END IF;
    RETURN NULL;
END
$$;

-- Returns the arguments of a trigger.
CREATE FUNCTION trigger_arguments(trigger_oid oid) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(convert_from(decode(replace(s.part, ' ', ''), 'hex'), getdatabaseencoding()) ORDER BY s.i)
    FROM pg_trigger AS t,
         regexp_split_to_table(regexp_replace(encode(t.tgargs, 'hex'), '(..)', '\1 ', 'g'), '00 ') WITH ORDINALITY AS s (part, i)
    WHERE t.oid = trigger_oid AND s.i <= t.tgnargs
$$;

-- Returns the table and all its partitions. Unlike pg_partition_tree() it locks none of them, because
-- sessions that lock them all later could deadlock.
CREATE FUNCTION table_and_partitions(target regclass) RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE tree (oid) AS (
        SELECT target::oid
        UNION
        SELECT i.inhrelid FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid AND c.relkind = 'p' JOIN pg_inherits AS i ON i.inhparent = t.oid
    )
    SELECT t.oid::regclass FROM tree AS t
$$;

-- Returns the arguments that a table is protected with, or NULL, and whether its protection is
-- complete: each trigger exists on the table and its partitions, calls the right function with the
-- right arguments, and is enabled, except that of fence_attached() on partitions with rows. Only roles with the rights of grant_owner() can create such
-- triggers. If a column is renamed, the condition of the stamp follows and the arguments do not. Then
-- the protection is not complete.
CREATE FUNCTION protection_of(target regclass, OUT arguments text[], OUT complete boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on SET quote_all_identifiers = off AS $$
BEGIN
    WITH rels AS (
        SELECT c.oid, c.relkind FROM pg_class AS c WHERE c.oid IN (SELECT "<here>".table_and_partitions(target))
    ), ours AS (
        SELECT t.oid, t.tgrelid, p.proname, t.tgtype, t.tgargs, t.tgqual, t.tgenabled, t.tgoldtable, t.tgnewtable
        FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE p.pronamespace = '<here>'::regnamespace AND t.tgrelid IN (SELECT r.oid FROM rels AS r)
    ), own AS (
        SELECT o.oid, o.tgargs FROM ours AS o WHERE o.tgrelid = target AND o.proname = 'fence_rows' ORDER BY o.oid LIMIT 1
    ), wanted (proname, tgtype, has_condition) AS (
        -- tgtype: 1 each row, 2 before, 4 INSERT, 8 DELETE, 16 UPDATE, 32 TRUNCATE
        VALUES ('fence_rows', 4, false), ('fence_rows', 8, false), ('fence_rows', 16, false), ('fence_stamp', 23, true),
               ('fence_truncate', 34, false), ('fence_truncate_rows', 34, false)
        UNION ALL
        SELECT w.* FROM (VALUES ('fence_attached', 29, false), ('fence_moved', 19, NULL)) AS w
        WHERE EXISTS (SELECT FROM rels AS r WHERE r.oid = target AND r.relkind = 'p')
        UNION ALL
        SELECT 'fence_changed', 17, true
        WHERE (SELECT "<here>".trigger_arguments(own.oid) FROM own)[2] = 'permissive'
    )
    SELECT (SELECT "<here>".trigger_arguments(own.oid) FROM own),
           NOT EXISTS (SELECT FROM rels AS r WHERE r.relkind NOT IN ('r', 'p'))
           AND NOT EXISTS (SELECT FROM pg_inherits AS i JOIN rels AS r ON r.oid = i.inhparent WHERE r.relkind = 'r')
           AND NOT EXISTS (
               SELECT FROM rels AS r CROSS JOIN wanted AS w
               WHERE NOT EXISTS (
                   SELECT FROM ours AS o
                   WHERE o.tgrelid = r.oid AND o.proname = w.proname AND o.tgtype = w.tgtype AND (o.tgqual IS NOT NULL = w.has_condition OR w.has_condition IS NULL)
                     AND (o.proname <> 'fence_rows' OR ((o.tgtype & 8 <> 0 OR o.tgnewtable = 'new_rows') AND (o.tgtype & 4 <> 0 OR o.tgoldtable = 'old_rows')))
                     AND (o.tgenabled IN ('O', 'A')) = (w.proname <> 'fence_attached' OR r.relkind = 'p') AND o.tgargs = (SELECT own.tgargs FROM own)))
           AND NOT EXISTS (
               SELECT FROM ours AS o, LATERAL (SELECT pg_get_triggerdef(o.oid) AS def, "<here>".trigger_arguments(o.oid) AS args) AS d
               WHERE o.tgrelid = target AND o.proname = 'fence_stamp'
                 AND (position('(((new.' || quote_ident(d.args[1]) || ')::text = ' IN d.def) = 0
                      OR d.args[3] <> '' AND position('concat(' || (
                          SELECT string_agg(CASE WHEN p.i % 2 = 0 THEN 'new.' || quote_ident(p.part) ELSE '''' || replace(p.part, '''', '''''') || '''::text' END, ', ' ORDER BY p.i)
                          FROM unnest(d.args[6:]) WITH ORDINALITY AS p (part, i)) || ')' IN d.def) = 0))
    INTO arguments, complete;
END
$$;

-- enabled: no trigger is missing or disabled, on the table or a partition.
CREATE VIEW protected_tables AS
SELECT c.oid::regclass AS protected, p.arguments[1] AS token_column, p.arguments[2] = 'permissive' AS permissive,
       nullif(p.arguments[3], '') AS named_by, p.arguments[4] = 'added' AS column_added, p.complete AS enabled
FROM pg_class AS c
CROSS JOIN LATERAL protection_of(c.oid) AS p
WHERE NOT c.relispartition
  AND EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND t.tgfoid = 'fence_rows()'::regprocedure);
COMMENT ON VIEW protected_tables IS 'pglock: what is protected, and how';

-- Drops the triggers of a table and its partitions, and other triggers with their names. Triggers of
-- partitions that belong to a trigger of the table are dropped with it.
CREATE FUNCTION drop_triggers(target regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT t.tgname, t.tgrelid::regclass AS rel FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid IN (SELECT "<here>".table_and_partitions(target))
          AND (t.tgname LIKE 'zz\_pglock\_fence%' OR p.pronamespace = '<here>'::regnamespace AND p.proname LIKE 'fence\_%')
          AND t.tgparentid = 0
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', old.tgname, old.rel);
    END LOOP;
END
$$;

-- Creates the triggers of a table and its partitions. Triggers on rows run after all others of the
-- table, by their names, so that they see the row as it will be written.
CREATE FUNCTION create_triggers(target regclass, arguments text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    quoted text := (SELECT string_agg(quote_literal(a), ', ' ORDER BY i) FROM unnest(arguments) WITH ORDINALITY AS u (a, i));
    bound  text := $e$pg_catalog.current_setting('pglock.token_<schema>', true)$e$;
    parts  regclass[];
    rel    regclass;
    moves  text;
BEGIN
    IF arguments[3] <> '' THEN
        -- Stores the token of the row's lock in a setting, for fence_stamp().
        bound := format($e$pg_catalog.set_config('pglock.stamp_<schema>', coalesce(
            nullif(pg_catalog.substr(pg_catalog.current_setting('pglock.grants_<schema>', true), 65), '')::pg_catalog.jsonb -> 'grants' ->> (%s), ''), true)$e$,
            "<here>".lock_name_expression(arguments[6:], 'NEW.'));
    END IF;
    -- No function is called for a row that already has its token.
    EXECUTE format('CREATE TRIGGER zz_pglock_fence_stamp BEFORE INSERT OR UPDATE ON %s FOR EACH ROW WHEN ((NEW.%I::pg_catalog.text = %s) IS NOT TRUE)'
                   ' EXECUTE FUNCTION %s.fence_stamp(%s)', target, arguments[1], bound, '<here>', quoted);
    parts := ARRAY(SELECT t FROM "<here>".table_and_partitions(target) AS t ORDER BY t::oid);
    IF (SELECT c.relkind = 'p' FROM pg_class AS c WHERE c.oid = target) THEN
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_attached AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'
                       ' EXECUTE FUNCTION %s.fence_attached(%s)', target, '<here>', quoted);
        -- The copies of a partitioned partition stay, because its later partitions copy them.
        FOR rel IN SELECT c.oid FROM pg_class AS c WHERE c.oid = ANY (parts) AND c.relkind = 'r' LOOP
            EXECUTE format('ALTER TABLE %s DISABLE TRIGGER zz_pglock_fence_attached', rel);
        END LOOP;
        -- Its name sorts after the stamp. It has no condition if a key is an expression, or is compared
        -- by an operator class of its own. Otherwise texts are compared by their bytes: the collation of
        -- the key, which decides where a row goes, can distinguish what that of the column does not.
        SELECT CASE WHEN bool_or(k.attnum = 0 OR NOT o.opcdefault) THEN ''
                    ELSE format(' WHEN (%s)', string_agg(format('OLD.%1$I%2$s IS DISTINCT FROM NEW.%1$I%2$s', a.attname,
                        CASE WHEN a.attcollation <> 0 THEN ' COLLATE pg_catalog."C"' END), ' OR ') FILTER (WHERE a.attname IS NOT NULL)) END INTO moves
        FROM pg_partitioned_table AS p CROSS JOIN LATERAL unnest(p.partattrs, p.partclass) AS k (attnum, opclass)
        JOIN pg_opclass AS o ON o.oid = k.opclass
        LEFT JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.attnum
        WHERE p.partrelid = ANY (parts);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_zmoved BEFORE UPDATE ON %s FOR EACH ROW%s EXECUTE FUNCTION %s.fence_moved(%s)',
                       target, moves, '<here>', quoted);
    END IF;
    IF arguments[2] = 'permissive' THEN
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_changed AFTER UPDATE ON %s FOR EACH ROW WHEN (OLD.%2$I IS DISTINCT FROM NEW.%2$I)'
                       ' EXECUTE FUNCTION %3$s.fence_changed(%4$s)', target, arguments[1], '<here>', quoted);
    END IF;
    FOREACH rel IN ARRAY parts LOOP
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)', rel, '<here>', quoted);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)', rel, '<here>', quoted);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS old_rows'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)', rel, '<here>', quoted);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_truncate BEFORE TRUNCATE ON %s'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_truncate(%s)', rel, '<here>', quoted);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_truncate_rows BEFORE TRUNCATE ON %s'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_truncate_rows(%s)', rel, '<here>', quoted);
    END LOOP;
END
$$;

-- Fails if the table can't be protected.
CREATE FUNCTION require_table(target regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
    why text;
BEGIN
    SELECT * INTO c FROM pg_class WHERE oid = target;
    why := CASE
        WHEN target IS NULL OR NOT FOUND THEN 'no such table'
        WHEN c.relkind NOT IN ('r', 'p') THEN format('%s is not a table', target)
        WHEN c.relispartition THEN format('%s is a partition: protect the table that it belongs to', target)
        WHEN c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = target OR inhrelid = target)
            THEN format('%s is part of an inheritance tree, where triggers of one table say nothing about the others', target)
        WHEN EXISTS (SELECT FROM "<here>".table_and_partitions(target) AS p JOIN pg_class AS f ON f.oid = p WHERE f.relkind = 'f')
            THEN format('%s has a foreign table as a partition, whose rows no trigger can judge', target)
    END;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL04', MESSAGE = 'pglock: ' || why;
    END IF;
END
$$;

-- Splits the template of a lock's name: literal, column, literal, column ...
--
-- The text of a column must not depend on the session: settings such as DateStyle and TimeZone
-- would give one row several locks. Nor may it change without a write: the owner of an enum can
-- rename its values, which would hand rows to another lock.
CREATE FUNCTION template_parts(target regclass, template text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part   text[];
    parts  text[] := '{}';
    parsed text := '';
    col    record;
    base   oid;
BEGIN
    FOR part IN SELECT regexp_matches(template, '([^{}]*)[{]([^{}]+)[}]|([^{}]+)$', 'g') LOOP
        IF part[2] IS NULL THEN
            parsed := parsed || part[3];
            parts := parts || part[3];
            CONTINUE;
        END IF;
        parsed := parsed || part[1] || '{' || part[2] || '}';
        parts := parts || part[1:2];
        SELECT a.attgenerated <> '' AS computed, a.atttypid INTO col
        FROM pg_attribute AS a
        WHERE a.attrelid = target AND a.attname = part[2] AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND OR col.computed THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL05', COLUMN = part[2],
                MESSAGE = CASE WHEN FOUND THEN format('pglock: column "%s" of %s is generated, and not known yet when a row is stamped', part[2], target)
                               ELSE format('pglock: %s has no column "%s" for the lock''s name', target, part[2]) END;
        END IF;
        base := col.atttypid;
        WHILE (SELECT t.typtype = 'd' FROM pg_type AS t WHERE t.oid = base) LOOP
            base := (SELECT t.typbasetype FROM pg_type AS t WHERE t.oid = base);
        END LOOP;
        IF base <> ALL ('{int2,int4,int8,numeric,text,varchar,name,uuid}'::regtype[]) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL05', COLUMN = part[2],
                MESSAGE = format('pglock: column "%s" of %s has the type %s: a lock''s name takes columns of type smallint, integer, bigint, '
                                 'numeric, text, varchar, name, uuid, or a domain over one of them', part[2], target, format_type(col.atttypid, NULL));
        END IF;
        IF cardinality(parts) > 2 AND part[1] = '' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL07',
                MESSAGE = format('pglock: "%s" has two columns side by side, so rows with different values have one lock: '
                                 'separate them by text that the values do not contain', template);
        END IF;
    END LOOP;
    IF parsed <> template OR position('{' IN template) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL07',
            MESSAGE = format('pglock: "%s" does not tell a lock''s name by a column, as "account:{id}" does', template);
    END IF;
    RETURN parts;
END
$$;

-- Adds a token column, unless it is there, and the triggers. See package fencing. The table's owner
-- calls it, with the rights that grant_owner() gives.
CREATE FUNCTION protect(target regclass, token_column text DEFAULT 'fence_token', permissive boolean DEFAULT false,
                        named_by text DEFAULT '') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old   record;
    col   record;
    mode  text := CASE WHEN permissive THEN 'permissive' ELSE 'strict' END;
    parts text[] := '{}';
    added boolean;
    unset text;
BEGIN
    PERFORM "<here>".require_table(target);
    named_by := coalesce(named_by, '');
    IF (octet_length(token_column) BETWEEN 1 AND 63) IS NOT TRUE OR permissive IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL07',
            MESSAGE = 'pglock: the token column needs a name of 1 to 63 bytes, and no option may be NULL';
    END IF;
    IF named_by <> '' THEN
        parts := "<here>".template_parts(target, named_by);
    END IF;
    FOR attempt IN 1..2 LOOP
        old := "<here>".protection_of(target);
        IF old.arguments IS NOT NULL AND old.complete THEN
            IF old.arguments[1:3] <> ARRAY[token_column, mode, named_by] THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'PGL06',
                    MESSAGE = format('pglock: %s is protected already, by column "%s", %s, %s', target, old.arguments[1], old.arguments[2],
                        CASE WHEN old.arguments[3] = '' THEN 'by any lock' ELSE format('by the lock "%s"', old.arguments[3]) END),
                    HINT = 'Unprotect it first.';
            END IF;
            RETURN;
        END IF;
        -- Another session may be protecting it: check again under the lock.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    END LOOP;
    PERFORM "<here>".require_table(target);
    PERFORM "<here>".drop_triggers(target);

    SELECT a.atttypid = 'bigint'::regtype AND a.attgenerated = '' AND a.attidentity = '' AND a.attnum > 0 AS fits, a.attnotnull INTO col
    FROM pg_attribute AS a WHERE a.attrelid = target AND a.attname = token_column AND NOT a.attisdropped;
    IF col.fits IS FALSE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL05', COLUMN = token_column,
            MESSAGE = format('pglock: column "%s" of %s is there and is not a plain bigint', token_column, target);
    ELSIF col.fits IS NULL THEN
        EXECUTE format('ALTER TABLE %1$s ADD COLUMN %2$I bigint, ALTER COLUMN %2$I SET DEFAULT '
                       'nullif(pg_catalog.current_setting(%3$L, true), %4$L)::bigint', target, token_column, 'pglock.token_<schema>', '');
    END IF;
    added := col.fits IS NULL OR coalesce(old.arguments[4] = 'added' AND old.arguments[1] = token_column, false);
    -- An insert without a grant must have no token. An insert into a partition may have one, because a
    -- row that moves is inserted there. fence_rows() distinguishes the two.
    unset := CASE WHEN (SELECT relkind = 'p' FROM pg_class WHERE oid = target) THEN 'keep' WHEN col.attnotnull THEN '0' ELSE '' END;
    PERFORM "<here>".create_triggers(target, ARRAY[token_column, mode, named_by, CASE WHEN added THEN 'added' ELSE 'kept' END, unset] || parts);
END
$$;
COMMENT ON FUNCTION protect(regclass, text, boolean, text) IS 'pglock: have a table refuse writes without, or with an old, grant';

-- Removes what protect() has added. The column is recognized by its default, also after a rename. A
-- column of that name with another default belongs to the user.
CREATE FUNCTION unprotect(target regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was text[];
    col text;
BEGIN
    IF target IS NULL THEN
        PERFORM "<here>".require_table(target);
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    was := (SELECT p.arguments FROM "<here>".protection_of(target) AS p);
    PERFORM "<here>".drop_triggers(target);
    IF was[4] = 'added' THEN
        SELECT a.attname INTO col
        FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped
          AND (position('pglock.token_<schema>' IN pg_get_expr(d.adbin, d.adrelid)) > 0 OR a.attname = was[1] AND d.adbin IS NULL)
        ORDER BY d.adbin IS NULL;
        IF FOUND THEN
            EXECUTE format('ALTER TABLE %s DROP COLUMN %I', target, col);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION unprotect(regclass) IS 'pglock: restore a table to what it was before protect';

-- Grants a role what it needs to protect its own tables. It needs no right on the locks.
-- PUBLIC usually has EXECUTE on the functions without "fence_". Some administrators revoke it.
CREATE FUNCTION grant_owner(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM "<here>".grant_on(role_name, 'EXECUTE', 'FUNCTION',
        '{fence_rows,fence_stamp,fence_attached,fence_moved,fence_changed,fence_truncate,fence_truncate_rows,
          protect,unprotect,protection_of,drop_triggers,create_triggers,require_table,template_parts,
          table_and_partitions,trigger_arguments,lock_name_expression,raise_unfenced,raise_stale}');
END
$$;
COMMENT ON FUNCTION grant_owner(text) IS 'pglock: give a role what it needs to protect tables that it owns';

-- Only triggers call the functions whose names begin with fence_. A role with USAGE on the schema
-- can't attach them to a table of its own, which would block migrating down. The other two are called
-- by these functions.
REVOKE EXECUTE ON FUNCTION fence_rows(), fence_stamp(), fence_attached(), fence_moved(), fence_changed(), fence_truncate(), fence_truncate_rows(),
    bound_grants(), judge_rows(jsonb, text, bigint, bigint, bigint, text, text, text) FROM PUBLIC;

-- A role with USAGE on the schema can't build tables and views on the types of these rows.
REVOKE USAGE ON TYPE protected_tables FROM PUBLIC;

SELECT pin_functions();

-- It shows only what any role can read in the catalog.
GRANT SELECT ON protected_tables TO PUBLIC;

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
