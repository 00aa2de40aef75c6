-- Which tables are protected: protect() and unprotect() make and remove the triggers of the file before.

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
-- right arguments, and is enabled, except that of fence_attached() on partitions with rows. If a
-- column is renamed, the condition of the stamp follows and the arguments do not, so it is not.
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
    body   text; -- of a trigger
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
    FOR rel, body IN
        SELECT p, d FROM unnest(parts) AS p, unnest(ARRAY[
            'inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)',
            'updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)',
            'deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_rows(%s)',
            'truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_truncate(%s)',
            'truncate_rows BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s.fence_truncate_rows(%s)']) AS d
    LOOP
        EXECUTE format('CREATE TRIGGER zz_pglock_fence_' || body, rel, '<here>', quoted);
    END LOOP;
END
$$;

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

-- It needs no right on the locks. PUBLIC usually has EXECUTE on the functions without "fence_".
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

SELECT pin_functions();

-- It shows only what any role can read in the catalog.
GRANT SELECT ON protected_tables TO PUBLIC;

CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 7';
