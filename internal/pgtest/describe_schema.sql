-- A hash of what a schema consists of: $1 is its name. Rows of the statistics count as well, because
-- a plan that a test has caused with ANALYZE must not reach the next test. Rights that were granted to
-- another role and revoked again leave the default ones in the catalog, in the place of a null.
WITH n AS (SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = $1),
     r AS (SELECT c.* FROM pg_catalog.pg_class AS c JOIN n ON c.relnamespace = n.oid),
     f AS (SELECT p.* FROM pg_catalog.pg_proc AS p JOIN n ON p.pronamespace = n.oid),
     t AS (SELECT t.* FROM pg_catalog.pg_type AS t JOIN n ON t.typnamespace = n.oid),
     facts AS (
    SELECT 'schema' AS kind, oid, nspowner::text AS fact FROM n
    UNION ALL
    SELECT 'relation', oid, ROW(relname, relkind, relowner, reloptions, relnatts, relpersistence,
                                relrowsecurity, relforcerowsecurity, relreplident)::text FROM r
    UNION ALL
    SELECT 'column', a.attrelid, ROW(a.attnum, a.attname, a.atttypid, a.attnotnull, nullif(a.attacl::text, '{}'), a.attisdropped,
                                     a.attoptions, a.attstattarget)::text
    FROM pg_catalog.pg_attribute AS a JOIN r ON a.attrelid = r.oid WHERE a.attnum > 0
    UNION ALL
    SELECT 'function', oid, ROW(proname, proowner, proconfig, prosecdef, md5(prosrc))::text FROM f
    UNION ALL
    SELECT 'type', t.oid, ROW(t.typname, t.typowner)::text FROM t
    UNION ALL
    SELECT 'right', o.oid, i::text
    FROM (SELECT oid, coalesce(nspacl, pg_catalog.acldefault('n', nspowner)) FROM n
          UNION ALL
          SELECT oid, coalesce(relacl, pg_catalog.acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)) FROM r
          UNION ALL
          SELECT oid, coalesce(proacl, pg_catalog.acldefault('f', proowner)) FROM f
          UNION ALL
          SELECT oid, coalesce(typacl, pg_catalog.acldefault('T', typowner)) FROM t) AS o (oid, acl), pg_catalog.unnest(o.acl) AS i
    UNION ALL
    SELECT 'constraint', k.oid, ROW(k.conname, k.convalidated)::text
    FROM pg_catalog.pg_constraint AS k
    WHERE k.connamespace IN (SELECT oid FROM n) OR k.confrelid IN (SELECT oid FROM r)
    UNION ALL
    SELECT 'trigger', t.oid, ROW(t.tgrelid, t.tgname, t.tgenabled)::text
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid IN (SELECT oid FROM r) OR t.tgfoid IN (SELECT oid FROM f)
    UNION ALL
    SELECT 'rule', w.oid, ROW(w.ev_class, w.rulename, w.ev_enabled, md5(w.ev_action::text))::text
    FROM pg_catalog.pg_rewrite AS w JOIN r ON w.ev_class = r.oid
    UNION ALL
    SELECT 'policy', p.oid, p.polname::text FROM pg_catalog.pg_policy AS p JOIN r ON p.polrelid = r.oid
    UNION ALL
    SELECT 'sequence', s.seqrelid, ROW(s.*)::text FROM pg_catalog.pg_sequence AS s JOIN r ON s.seqrelid = r.oid
    UNION ALL
    SELECT 'statistics', s.starelid, s.staattnum::text FROM pg_catalog.pg_statistic AS s JOIN r ON s.starelid = r.oid
    UNION ALL
    SELECT 'defaults', d.oid, d.defaclacl::text FROM pg_catalog.pg_default_acl AS d
    WHERE d.defaclnamespace IN (SELECT oid FROM n)
    UNION ALL
    SELECT 'rows', NULL, pg_catalog.md5(pg_catalog.query_to_xml(pg_catalog.format('SELECT * FROM %I.%I', $1, t), true, false, '')::text)
    FROM pg_catalog.unnest('{pglock_migrations,fencing_secret}'::text[]) AS t)
SELECT pg_catalog.md5(pg_catalog.string_agg(kind || ' ' || coalesce(oid::text, '') || ' ' || fact, E'\n' ORDER BY kind, oid, fact))
FROM facts
