-- Reads the objects of the schema $1 that programs depend on.
--
-- Returns for each of them its kind and name, what programs depend on, the signature of a function that PUBLIC may
-- execute, and the body of a function. A last row without a name has the hash by which pin_functions() names the
-- settings of a schema. Types are names, and no text is deparsed, since that differs between versions of PostgreSQL.
-- The record of versions is left out, because another tool may have run the migrations.
--
-- Why it is safe: it reads the catalogs alone, with search_path = pg_catalog, so no code of others takes part.
WITH r AS MATERIALIZED (
    SELECT c.oid, c.relname::text AS name, c.relkind AS kind FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::text AND c.relkind IN ('r', 'v', 'S', 'c', 'i') AND c.relname !~ '^pglock_migrations'
), d AS MATERIALIZED (
    SELECT t.oid, t.typname::text AS name, t.typbasetype AS base, t.typcollation AS sorts FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
    WHERE n.nspname = $1::text AND t.typtype = 'd'
)
SELECT format('function %s(%s)', p.proname, array_to_string(ARRAY(
           SELECT y.typname FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, number) JOIN pg_type AS y ON y.oid = a.type ORDER BY a.number), ', ')),
       concat_ws(' ', CASE WHEN p.proretset THEN 'setof' END, y.typname, l.lanname, p.provolatile, CASE WHEN p.prosecdef THEN 'definer' END,
           replace(array_to_string(p.proconfig, '; '), '"', ''), array_to_string(p.proargnames, ','), p.pronargdefaults),
       CASE WHEN EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE a.grantee = 0) THEN p.oid::regprocedure::text ELSE '' END,
       p.prosrc
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_language AS l ON l.oid = p.prolang JOIN pg_type AS y ON y.oid = p.prorettype
WHERE n.nspname = $1::text
UNION ALL
SELECT format('relation %s', r.name), concat_ws(' ', r.kind, CASE WHEN i.indisunique THEN 'unique' END, CASE WHEN i.indpred IS NOT NULL THEN 'partial' END), '', ''
FROM r LEFT JOIN pg_index AS i ON i.indexrelid = r.oid WHERE i.indisvalid IS NOT FALSE
UNION ALL
SELECT format('column %s.%s', r.name, a.attname), concat_ws(' ', y.typname, nullif(a.atttypmod, -1), o.collname, CASE WHEN a.attnotnull THEN 'not null' END,
           CASE WHEN a.atthasdef THEN 'default' END, nullif(a.attidentity, ''), nullif(a.attgenerated, ''), CASE r.kind WHEN 'i' THEN a.attnum END), '', ''
FROM r JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type AS y ON y.oid = a.atttypid LEFT JOIN pg_collation AS o ON o.oid = a.attcollation
WHERE r.kind <> 'S'
UNION ALL
SELECT format('domain %s', d.name), concat_ws(' ', y.typname, o.collname), '', ''
FROM d JOIN pg_type AS y ON y.oid = d.base LEFT JOIN pg_collation AS o ON o.oid = d.sorts
UNION ALL
SELECT format('constraint %s of %s%s', k.conname, r.name, d.name), k.contype::text, '', ''
FROM pg_constraint AS k LEFT JOIN r ON r.oid = k.conrelid LEFT JOIN d ON d.oid = k.contypid
WHERE (r.oid IS NOT NULL OR d.oid IS NOT NULL) AND k.contype IN ('p', 'u', 'c', 'f')
UNION ALL
SELECT '', '', '', to_hex(hashtextextended($1::text, 0))
