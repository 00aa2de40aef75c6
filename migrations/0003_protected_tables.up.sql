-- Protected tables: triggers that refuse writes without a grant, or with an old one.
--
-- Run with search_path set to the schema that holds the lock tables. Which settings and
-- SQLSTATEs it uses is told in 0002. All of this file is one transaction.
--
--   statement   zz_pglock_fence, on the table and each partition: what the transaction has
--               bound is compared with the lock table, once for each statement
--   row         zz_pglock_fence_insert, _update, _delete: the row is compared with what is
--               bound, and stamped
--   TRUNCATE    zz_pglock_fence_truncate
--
-- A row that came past the statement trigger (into a partition that is newer than the
-- protection) is verified by the row's trigger, once in a transaction.

-- Numbers for protected tables. They are never used twice.
CREATE SEQUENCE fencing_protections AS bigint;

-- Compares what is bound with the lock table: once for each statement on a protected
-- table, and for a row that came by another way than its table's statement trigger.
CREATE FUNCTION verify_grants(protection text, resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    grants   text := current_setting('pglock.grants_<schema>', true);
    token    text := current_setting('pglock.token_<schema>', true);
    locked   boolean := right(grants, 1) = ' ';
    is_bound boolean := false;
    g        record;
BEGIN
    IF coalesce(grants, '') = '' THEN
        RETURN;
    END IF;
    FOR g IN SELECT e.key, e.value FROM jsonb_each_text(grants::jsonb) AS e LOOP
        IF locked THEN
            PERFORM FROM distributed_locks AS l WHERE l.name = g.key AND l.token = g.value::bigint;
            IF NOT FOUND THEN
                PERFORM raise_stale(g.key, g.value::bigint,
                    coalesce((SELECT l.token FROM distributed_locks AS l WHERE l.name = g.key), 0));
            END IF;
        ELSE
            PERFORM guard(g.key, g.value::bigint);
        END IF;
        is_bound := is_bound OR g.value = token;
    END LOOP;
    IF NOT is_bound THEN
        PERFORM raise_stale('', coalesce(nullif(token, ''), '0')::bigint, 0);
    END IF;
    IF NOT locked THEN
        grants := grants || ' ';
        PERFORM set_config('pglock.grants_<schema>', grants, true);
    END IF;
    IF resource <> '' THEN
        PERFORM advance(resource, token::bigint);
    END IF;
    PERFORM set_config('pglock.seen_<schema>_' || protection, grants, true);
END
$$;

-- The triggers of a protected table have as arguments what it was protected with:
--   number, resource of the table's mark or '', token column, strict or permissive,
--   template of the lock's name or '', added or kept (the column)
CREATE FUNCTION fence_statement() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    grants   text := current_setting('pglock.grants_<schema>', true);
    token    text;
    wrong    bigint;
    is_bound boolean;
BEGIN
    IF coalesce(grants, '') = '' THEN
        RETURN NULL; -- the rows' triggers decide
    END IF;
    IF TG_ARGV[1] = '' AND right(grants, 1) = ' ' THEN
        -- As a rule: what verify_grants does, in one statement. OFFSET keeps the planner
        -- from reading the whole lock table for what it takes for a hundred grants.
        token := current_setting('pglock.token_<schema>', true);
        SELECT count(*) FILTER (WHERE NOT EXISTS (
                   SELECT FROM distributed_locks AS l WHERE l.name = g.key AND l.token = g.value::bigint OFFSET 0)),
               bool_or(g.value = token)
        INTO wrong, is_bound
        FROM jsonb_each_text(grants::jsonb) AS g;
        IF wrong = 0 AND is_bound THEN
            PERFORM set_config('pglock.seen_<schema>_' || TG_ARGV[0], grants, true);
            RETURN NULL;
        END IF;
    END IF;
    PERFORM verify_grants(TG_ARGV[0], TG_ARGV[1]);
    RETURN NULL;
END
$$;

CREATE FUNCTION fence_truncate() RETURNS trigger
LANGUAGE plpgsql SET row_security = off AS $$
DECLARE
    newest bigint;
    token  bigint;
BEGIN
    IF coalesce(current_setting('pglock.grants_<schema>', true), '') = '' THEN
        IF TG_ARGV[3] = 'strict' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL02', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                MESSAGE = format('pglock: unfenced TRUNCATE of "%s"', TG_TABLE_NAME),
                HINT = 'Bind the grant of a lock in this transaction first.';
        END IF;
        RETURN NULL;
    END IF;
    IF TG_ARGV[4] <> '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL03', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('pglock: TRUNCATE of "%s", whose rows belong to many locks', TG_TABLE_NAME),
            HINT = 'Delete the rows of your lock.';
    END IF;
    PERFORM verify_grants(TG_ARGV[0], TG_ARGV[1]);
    token := current_setting('pglock.token_<schema>');
    -- row_security is off in this function: rather an error than rows that are not seen.
    EXECUTE format('SELECT max(%I) FROM %s', TG_ARGV[2], TG_RELID::regclass) INTO newest;
    IF newest > token THEN
        PERFORM raise_stale(TG_TABLE_NAME, token, newest);
    END IF;
    RETURN NULL;
END
$$;

-- The arguments of a trigger.
CREATE FUNCTION trigger_arguments(trigger_oid oid) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(convert_from(decode(replace(s.part, ' ', ''), 'hex'), getdatabaseencoding()) ORDER BY s.i)
    FROM pg_trigger AS t,
         regexp_split_to_table(regexp_replace(encode(t.tgargs, 'hex'), '(..)', '\1 ', 'g'), '00 ') WITH ORDINALITY AS s (part, i)
    WHERE t.oid = trigger_oid AND s.i <= t.tgnargs
$$;

-- Whether a table has the triggers that look at rows.
CREATE FUNCTION has_row_triggers(target regclass) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT count(*) = 3 FROM pg_trigger AS t WHERE t.tgrelid = target AND t.tgname ~ '^zz_pglock_fence_(insert|update|delete)$'
$$;

-- enabled: nothing is switched off, here or in a partition, and nothing is missing, as it is in
-- a partition that was detached.
CREATE VIEW protected_tables AS
SELECT t.tgrelid::regclass AS protected, a.args[3] AS token_column, a.args[4] = 'permissive' AS permissive,
       a.args[2] <> '' AS per_table, nullif(a.args[5], '') AS named_by, a.args[6] = 'added' AS column_added,
       has_row_triggers(t.tgrelid)
       AND NOT EXISTS (
           SELECT FROM pg_trigger AS d
           WHERE (d.tgrelid = t.tgrelid OR d.tgrelid IN (SELECT p.relid FROM pg_partition_tree(t.tgrelid) AS p))
             AND d.tgname LIKE 'zz\_pglock\_fence%' AND d.tgenabled NOT IN ('O', 'A'))
       AND NOT (c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid)) AS enabled
FROM pg_trigger AS t
CROSS JOIN LATERAL (SELECT trigger_arguments(t.oid) AS args) AS a
JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE t.tgfoid = 'fence_statement()'::regprocedure AND NOT c.relispartition;
COMMENT ON VIEW protected_tables IS 'pglock: what is protected, and how';
-- It tells no more than the catalog, which anybody can read.
GRANT SELECT ON protected_tables TO PUBLIC;

-- The SQL expression of the lock's name for NEW or OLD, with everything qualified: it is
-- also used where the search_path is the writer's.
CREATE FUNCTION lock_name_expression(target regclass, template text, prefix text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    part   text[];
    parts  text[] := '{}';
    parsed text := '';
    col    record;
BEGIN
    FOR part IN SELECT regexp_matches(template, '([^{}]+)|[{]([^{}]+)[}]', 'g') LOOP
        IF part[1] IS NOT NULL THEN
            parsed := parsed || part[1];
            parts := parts || format('%L::pg_catalog.text', part[1]);
            CONTINUE;
        END IF;
        parsed := parsed || '{' || part[2] || '}';
        SELECT a.attgenerated <> '' AS computed INTO col
        FROM pg_attribute AS a
        WHERE a.attrelid = target AND a.attname = part[2] AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND OR col.computed THEN
            RAISE EXCEPTION USING
                ERRCODE = 'PGL05', COLUMN = part[2],
                MESSAGE = CASE WHEN FOUND THEN format('pglock: column "%s" of %s is generated, and not known yet when a row is checked', part[2], target)
                               ELSE format('pglock: %s has no column "%s" for the lock''s name', target, part[2]) END;
        END IF;
        parts := parts || format('%s.%I::pg_catalog.text', prefix, part[2]);
    END LOOP;
    IF parsed <> template OR position('{' IN template) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL07',
            MESSAGE = format('pglock: "%s" does not tell a lock''s name by a column, as "account:{id}" does', template);
    END IF;
    RETURN '(' || array_to_string(parts, ' OPERATOR(pg_catalog.||) ') || ')';
END
$$;

-- What is done with one row. It runs with the writer's rights and search_path, so
-- everything in it is qualified: an operator "<=" of the writer's own has no part in it.
CREATE FUNCTION row_function(number text, resource text, target regclass, token_column text, permissive boolean, named_by text,
                             unset text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    name     text := format('%I.%I', current_schema(), 'fence_row_' || number);
    unfenced text;
    tokens   text;
BEGIN
    unfenced := CASE WHEN NOT permissive THEN $body$
        RAISE EXCEPTION USING
            ERRCODE = 'PGL02', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = pg_catalog.format('pglock: unfenced %s of "%s"', TG_OP, TG_TABLE_NAME),
            HINT = 'Bind the grant of a lock in this transaction first.';$body$
    ELSE format($body$
        IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
            RETURN OLD;
        ELSIF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN
            NEW.%1$I := OLD.%1$I;
        ELSE
            NEW.%1$I := %2$s;
        END IF;
        RETURN NEW;$body$, token_column, unset) END;

    tokens := CASE WHEN named_by = '' THEN $body$
    old_token := pg_catalog.current_setting('pglock.token_<schema>');
    new_token := old_token;$body$
    ELSE format($body$
    IF TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN
        lock := %1$s;
        old_token := grants::pg_catalog.jsonb OPERATOR(pg_catalog.->>) lock;
        wrong := old_token IS NULL;
    END IF;
    IF NOT wrong AND TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
        lock := %2$s;
        new_token := grants::pg_catalog.jsonb OPERATOR(pg_catalog.->>) lock;
        wrong := new_token IS NULL;
    END IF;
    IF wrong THEN
        RAISE EXCEPTION USING
            ERRCODE = 'PGL03', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = pg_catalog.format('pglock: %%s of a row of "%%s" that belongs to the lock "%%s", of which no grant is bound', TG_OP, TG_TABLE_NAME, lock),
            DETAIL = pg_catalog.jsonb_build_object('resource', lock)::pg_catalog.text;
    END IF;$body$, lock_name_expression(target, named_by, 'OLD'), lock_name_expression(target, named_by, 'NEW')) END;

    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS %L', name, format($body$
DECLARE
    grants    pg_catalog.text := pg_catalog.current_setting('pglock.grants_<schema>', true);
    lock      pg_catalog.text;
    wrong     boolean := false;
    old_token bigint;
    new_token bigint;
BEGIN
    IF (grants OPERATOR(pg_catalog.<>) '') IS NOT TRUE THEN%1$s
    END IF;
    IF (pg_catalog.current_setting('pglock.seen_<schema>_%2$s', true) OPERATOR(pg_catalog.=) grants) IS NOT TRUE THEN
        PERFORM %3$I.verify_grants(%2$L, %4$L);
    END IF;%5$s
    IF TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN
        IF OLD.%6$I OPERATOR(pg_catalog.>) old_token THEN
            lock := (SELECT e.key FROM pg_catalog.jsonb_each_text(grants::pg_catalog.jsonb) AS e
                     WHERE e.value OPERATOR(pg_catalog.=) old_token::pg_catalog.text);
            RAISE EXCEPTION USING
                ERRCODE = 'PGL01', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                MESSAGE = pg_catalog.format('pglock: stale grant: %%s of "%%s", and a row of "%%s" was written with %%s', old_token, lock, TG_TABLE_NAME, OLD.%6$I),
                DETAIL = pg_catalog.jsonb_build_object('resource', lock, 'token', old_token, 'current', OLD.%6$I)::pg_catalog.text,
                HINT = 'Roll back. Somebody else may hold the lock.';
        END IF;
        IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
            RETURN OLD;
        END IF;
    END IF;
    NEW.%6$I := new_token;
    RETURN NEW;
END
$body$, unfenced, number, current_schema(), resource, tokens, token_column));
    RETURN name;
END
$$;

-- Creates the statement triggers of a table and its partitions where they are missing, and
-- returns whether one was.
CREATE FUNCTION statement_triggers(target regclass, arguments text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    part    regclass;
    missing boolean := false;
BEGIN
    FOR part IN
        SELECT c.oid FROM pg_class AS c
        WHERE (c.oid = target OR c.oid IN (SELECT p.relid FROM pg_partition_tree(target) AS p)) AND c.relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND t.tgfoid = 'fence_statement()'::regprocedure)
        ORDER BY c.oid
    LOOP
        missing := true;
        EXECUTE format('CREATE TRIGGER zz_pglock_fence BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fence_statement(%s)',
                       part, arguments);
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fence_truncate(%s)',
                       part, arguments);
    END LOOP;
    RETURN missing;
END
$$;

-- Drops the triggers of a table and its partitions. Those of partitions that call the row
-- functions go with the table's own.
CREATE FUNCTION drop_triggers(target regclass, row_functions regprocedure[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT t.tgname, t.tgrelid::regclass AS rel FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE (t.tgrelid = target OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(target)))
          AND t.tgname LIKE 'zz\_pglock\_fence%' AND p.pronamespace = quote_ident(current_schema())::regnamespace
          AND (t.tgrelid = target OR t.tgfoid <> ALL (row_functions))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', old.tgname, old.rel);
    END LOOP;
END
$$;

-- The row triggers run after all others of the table, by their names, so that they see
-- the row as it will be written. Where a row needs neither a stamp nor a refusal their
-- condition is false, and no function is called: that is a fifth of the price.
CREATE FUNCTION row_triggers(number text, target regclass, token_column text, named_by text, row_function text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- After a transaction its settings are empty, not gone, and nothing equals nothing.
    seen text := format($e$ AND pg_catalog.current_setting('pglock.seen_<schema>_%s', true) = nullif(pg_catalog.current_setting('pglock.grants_<schema>', true), '')$e$, number);
    bound_new text;
    bound_old text;
BEGIN
    bound_new := $e$nullif(pg_catalog.current_setting('pglock.token_<schema>', true), '')::bigint$e$;
    bound_old := bound_new;
    IF named_by <> '' THEN
        bound_new := format($e$(nullif(pg_catalog.current_setting('pglock.grants_<schema>', true), '')::jsonb ->> %s)::bigint$e$,
                            lock_name_expression(target, named_by, 'NEW'));
        bound_old := format($e$(nullif(pg_catalog.current_setting('pglock.grants_<schema>', true), '')::jsonb ->> %s)::bigint$e$,
                            lock_name_expression(target, named_by, 'OLD'));
    END IF;
    EXECUTE format('CREATE TRIGGER zz_pglock_fence_insert BEFORE INSERT ON %s FOR EACH ROW WHEN ((NEW.%I = %s%s) IS NOT TRUE) EXECUTE FUNCTION %s()',
                   target, token_column, bound_new, seen, row_function);
    EXECUTE format('CREATE TRIGGER zz_pglock_fence_update BEFORE UPDATE ON %1$s FOR EACH ROW WHEN ((OLD.%2$I = %3$s AND NEW.%2$I = OLD.%2$I AND NEW.%2$I = %4$s%5$s) IS NOT TRUE) EXECUTE FUNCTION %6$s()',
                   target, token_column, bound_old, bound_new, seen, row_function);
    EXECUTE format('CREATE TRIGGER zz_pglock_fence_delete BEFORE DELETE ON %s FOR EACH ROW WHEN ((coalesce(OLD.%I, 0) <= %s%s) IS NOT TRUE) EXECUTE FUNCTION %s()',
                   target, token_column, bound_old, seen, row_function);
END
$$;

-- Refuses what can't be protected.
CREATE FUNCTION require_table(target regclass) RETURNS void
LANGUAGE plpgsql AS $$
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
    END;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL04', MESSAGE = 'pglock: ' || why;
    END IF;
END
$$;

-- Adds a token column, unless it is there, and the triggers. See package fencing.
CREATE FUNCTION protect(target regclass, token_column text DEFAULT 'fence_token', permissive boolean DEFAULT false,
                        per_table boolean DEFAULT false, named_by text DEFAULT '') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    old    record;
    col    record;
    added  boolean;
    number text;
    mark   text;
    unset  text;
    args   text;
BEGIN
    PERFORM require_table(target);
    named_by := coalesce(named_by, '');
    IF (octet_length(token_column) BETWEEN 1 AND 63) IS NOT TRUE OR permissive IS NULL OR per_table IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL07',
            MESSAGE = 'pglock: the token column needs a name of 1 to 63 bytes, and no option may be NULL';
    ELSIF per_table AND named_by <> '' THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL07',
            MESSAGE = 'pglock: per_table with named_by: holders of different locks would keep each other out of the table';
    END IF;
    FOR attempt IN 1..2 LOOP
        SELECT t.*, (SELECT trigger_arguments(g.oid) FROM pg_trigger AS g
                     WHERE g.tgrelid = target AND g.tgfoid = 'fence_statement()'::regprocedure) AS args INTO old
        FROM protected_tables AS t WHERE t.protected = target;
        added := coalesce(old.column_added, false); -- where it was a partition
        IF FOUND AND has_row_triggers(target) THEN
            IF (old.token_column, old.permissive, old.per_table, coalesce(old.named_by, '')) <> (token_column, permissive, per_table, named_by) THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'PGL06',
                    MESSAGE = format('pglock: %s is protected already, by column "%s", %s, %s, %s', target, old.token_column,
                        CASE WHEN old.permissive THEN 'permissive' ELSE 'strict' END,
                        CASE WHEN old.per_table THEN 'per table' ELSE 'per row' END,
                        CASE WHEN old.named_by IS NULL THEN 'by any lock' ELSE format('by the lock "%s"', old.named_by) END),
                    HINT = 'Unprotect it first.';
            END IF;
            -- Partitions may have come since.
            PERFORM statement_triggers(target, (SELECT string_agg(quote_literal(a), ', ' ORDER BY i) FROM unnest(old.args) WITH ORDINALITY AS u (a, i)));
            RETURN;
        END IF;
        -- Somebody else may be at it: look again when nobody can.
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    END LOOP;
    PERFORM drop_triggers(target, '{}');

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
    number := nextval('fencing_protections');
    mark := CASE WHEN per_table THEN 'protected table ' || number ELSE '' END;
    -- An insert without a grant brings no token. Into a partitioned table it may: that is how a
    -- row moves from one partition to another.
    unset := CASE WHEN (SELECT relkind = 'p' FROM pg_class WHERE oid = target) THEN format('NEW.%I', token_column)
                  WHEN col.attnotnull THEN '0' ELSE 'NULL' END;
    args := format('%L, %L, %L, %L, %L, %L', number, mark, token_column, CASE WHEN permissive THEN 'permissive' ELSE 'strict' END,
                   named_by, CASE WHEN added OR col.fits IS NULL THEN 'added' ELSE 'kept' END);
    PERFORM row_triggers(number, target, token_column, named_by,
                         row_function(number, mark, target, token_column, permissive, named_by, unset)),
            statement_triggers(target, args);
END
$$;
COMMENT ON FUNCTION protect(regclass, text, boolean, boolean, text) IS 'pglock: have a table refuse writes without, or with an old, grant';

-- Takes away what protect added. The column is known by its default, also after it was
-- renamed; one of that name with another default is the user's.
CREATE FUNCTION unprotect(target regclass) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    was text[];
    col text;
    row_functions regprocedure[];
BEGIN
    PERFORM require_table(target);
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    SELECT trigger_arguments(t.oid) INTO was FROM pg_trigger AS t
    WHERE t.tgrelid = target AND t.tgfoid = 'fence_statement()'::regprocedure;
    SELECT array_agg(DISTINCT t.tgfoid) INTO row_functions FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE t.tgrelid = target AND t.tgname ~ '^zz_pglock_fence_(insert|update|delete)$' AND p.pronamespace = quote_ident(current_schema())::regnamespace;
    PERFORM drop_triggers(target, coalesce(row_functions, '{}'));
    FOR i IN 1..coalesce(array_length(row_functions, 1), 0) LOOP
        EXECUTE format('DROP FUNCTION %s', row_functions[i]);
    END LOOP;
    IF was[6] = 'added' THEN
        SELECT a.attname INTO col
        FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped
          AND (position('pglock.token_<schema>' IN pg_get_expr(d.adbin, d.adrelid)) > 0 OR a.attname = was[3] AND d.adbin IS NULL)
        ORDER BY d.adbin IS NULL;
        IF FOUND THEN
            EXECUTE format('ALTER TABLE %s DROP COLUMN %I', target, col);
        END IF;
    END IF;
    IF was[2] <> '' THEN
        DELETE FROM fencing_high_water WHERE resource = was[2];
    END IF;
END
$$;
COMMENT ON FUNCTION unprotect(regclass) IS 'pglock: give a table back as it was before protect';

-- Rows' triggers call it with the writer's rights. It can hold a grant's row and raise a mark, as guard
-- and advance can, so it is for the same roles.
REVOKE EXECUTE ON FUNCTION verify_grants(text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION check_fence(text, bigint), guard(text, bigint), bind(text, bigint), advance(text, bigint), '
                   'verify_grants(text, text) TO %I', role_name);
    PERFORM require_right(has_function_privilege(role_name, 'bind(text, bigint)', 'EXECUTE'), role_name);
END
$$;

-- Those who were given rights by 0002.
DO $writers$
DECLARE
    w record;
BEGIN
    FOR w IN
        SELECT DISTINCT a.grantee::regrole AS role
        FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.oid = to_regprocedure('bind(text, bigint)') AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION verify_grants(text, text) TO %s', w.role);
    END LOOP;
END
$writers$;

-- Pins each function to this schema. The writer's temporary tables come last, so that a
-- "distributed_locks" of its own has no part in it.
DO $pin$
DECLARE
    f    record;
    here text := CASE WHEN current_schema() ~ '^[a-z_][a-z0-9_]*$' THEN current_schema()::text
                      ELSE 'x' || to_hex(hashtextextended(current_schema()::text, 0)) END;
BEGIN
    FOR f IN
        SELECT p.oid, p.oid::regprocedure AS name, pg_get_functiondef(p.oid) AS definition
        FROM pg_proc AS p
        WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
          AND p.proname IN ('verify_grants', 'grant_writer', 'fence_statement', 'fence_truncate', 'trigger_arguments', 'lock_name_expression',
                            'row_function', 'statement_triggers', 'row_triggers', 'drop_triggers', 'has_row_triggers', 'require_table',
                            'protect', 'unprotect')
    LOOP
        EXECUTE replace(f.definition, '<schema>', here);
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', f.name, current_schema());
    END LOOP;
END
$pin$;

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';
