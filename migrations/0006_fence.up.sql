-- Protected tables: triggers that refuse writes without a grant, or with an old one.
--
-- A protected table and each of its partitions have the triggers that create_triggers() makes. Only
-- those after the statement, and those of TRUNCATE, are trusted. The statement's own expressions,
-- and triggers of others, run between the rows: they may change settings and rows, but not the
-- transition tables, and none of them runs any more when the triggers after the statement do.
--
-- These triggers compare the rows with what bind() has sealed. Each statement locks the grant's row
-- again, FOR KEY SHARE, and checks its token. So the fence holds even if a rollback to a savepoint
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

-- Returns the grants that this transaction has bound (see pglock.grants_<schema>), or NULL. It
-- fails if bind() has not set the settings. This function and the next one are called by others,
-- with their rights and search_path.
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

CREATE FUNCTION raise_unfit(rel oid, table_schema text, table_name text, column_name text, trigger_name text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = CASE WHEN EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = rel AND a.attname = column_name::name)
            THEN 'datatype_mismatch' ELSE 'undefined_column' END,
        SCHEMA = table_schema, TABLE = table_name,
        MESSAGE = format('pglock: column "%s" is not a bigint any more, or trigger "%s" lacks its transition tables', column_name, trigger_name);
END
$$;

-- Returns a query that says whether a statement without a grant was allowed; null if it was. A strict
-- table must have lost no row and got none. In another one, the tokens must be those of the replaced
-- rows.
CREATE FUNCTION unbound_query(operation text, token_column text, strict boolean) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN strict THEN format('SELECT NOT EXISTS (SELECT FROM %s)', CASE operation WHEN 'DELETE' THEN 'old_rows' ELSE 'new_rows' END)
        WHEN operation <> 'DELETE' THEN format('SELECT NOT EXISTS (SELECT n.%1$I FROM new_rows AS n WHERE n.%1$I <> 0%2$s)', token_column,
            CASE operation WHEN 'UPDATE' THEN format(' EXCEPT ALL SELECT o.%I FROM old_rows AS o', token_column) END) END
$$;

-- Returns a query that judges all rows, those of each lock at once: see judge_rows().
CREATE FUNCTION judging_query(operation text, token_column text, lock text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT format('SELECT %s.judge_rows($1, x.name, max(x.replaced), min(x.written), max(x.written), $2, $3, $4)'
                  ' FROM (%s) AS x (name, replaced, written) GROUP BY x.name', '<here>', concat_ws(' UNION ALL ',
        CASE WHEN operation <> 'INSERT' THEN format('SELECT %s, o.%I, NULL::int8 FROM old_rows AS o', lock, token_column) END,
        CASE WHEN operation <> 'DELETE' THEN format('SELECT %s, NULL::int8, coalesce(n.%I, 0) FROM new_rows AS n', lock, token_column) END))
$$;

-- After each statement: judges the rows in old_rows and new_rows. Only this function sees them, and
-- the queries that it executes.
CREATE FUNCTION fence_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    usual CONSTANT boolean := TG_ARGV[0] = 'fence_token'; -- then plans are kept, which halves the cost
    noted CONSTANT text    := coalesce(current_setting('pglock.grants_<schema>', true), '');
    token CONSTANT text    := current_setting('pglock.token_<schema>', true);
    type  oid; -- of the token column
    mine  bigint; -- the token of the grant that writes
    fine  boolean;
    b     jsonb;
    query text;
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
        done := "<here>".raise_unfit(TG_RELID, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0], TG_NAME);
    END IF;

    IF usual AND TG_ARGV[2] = '' AND noted <> '' THEN
        -- Any lock is accepted: the grant that was bound last writes. This accepts the usual case. It
        -- checks the seal, locks the grant's row like judge_rows(), and reads each row once.
        SELECT l.token INTO mine
        FROM "<here>".distributed_locks AS l
        WHERE l.token::text = token AND l.name = (SELECT u ->> 'lock' FROM "<here>".unsealed(noted) AS u WHERE u -> 'grants' ->> (u ->> 'lock') = token)
          AND (l.revoked_token IS DISTINCT FROM l.token OR "<here>".by_index())
        FOR KEY SHARE;
        fine := FOUND;
        IF fine AND TG_OP <> 'DELETE' THEN
            fine := NOT EXISTS (SELECT FROM new_rows AS n WHERE n.fence_token IS DISTINCT FROM mine);
        END IF;
        IF fine AND TG_OP <> 'INSERT' THEN
            fine := NOT EXISTS (SELECT FROM old_rows AS o WHERE o.fence_token > mine);
        END IF;
        IF fine THEN
            RETURN NULL;
        END IF;
    END IF;

    b := "<here>".bound_grants();
    IF b IS NULL THEN
        query := "<here>".unbound_query(TG_OP, TG_ARGV[0], TG_ARGV[1] = 'strict');
        IF query IS NOT NULL THEN
            EXECUTE query INTO fine;
        END IF;
        IF NOT fine THEN
            done := "<here>".raise_unfenced(TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME);
        END IF;
        RETURN NULL;
    END IF;

    query := "<here>".judging_query(TG_OP, TG_ARGV[0],
        CASE WHEN TG_ARGV[2] = '' THEN quote_literal(b ->> 'lock') || '::text' ELSE "<here>".lock_name_expression(TG_ARGV[5:], '') END);
    EXECUTE query USING b -> 'grants', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME;
    RETURN NULL;
END
$$;

-- Before each row: sets the token. It runs with the writer's rights and search_path, so everything
-- in it is qualified. fence_rows() decides in any case.
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

-- Only triggers call the functions whose names begin with fence_. A role with USAGE on the schema
-- can't attach them to a table of its own, which would block migrating down.
REVOKE EXECUTE ON FUNCTION fence_rows, fence_stamp, fence_attached, fence_moved, fence_changed, fence_truncate, fence_truncate_rows,
    bound_grants, judge_rows FROM PUBLIC;

SELECT pin_functions();

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 6';
