-- Reads what the catalogs say about the schema $1 and its version table $2, and which role could run
-- code there as this one.
--
-- Returns one row: the role, the database, whether the schema exists, whether the role may create
-- objects in it (or the schema, if it is missing), whether the version table exists and reading it
-- runs no code, then the first finding: what it is, its name and the role that it belongs to, all empty if
-- there is none; and whether the role is a superuser.
--
-- Why it is safe:
-- * A migration resolves names in the schema, and functions with better matching argument types come
--   before those of pg_catalog, whatever the order of search_path. So no other role may have been
--   able to create one. Findings are the owner of the schema, roles with CREATE on it, and owners of
--   functions, operators, tables and views in it, unless they are members of this role. Superusers
--   are members of every role. The owner of the database stands for pg_database_owner.
-- * A version table that is a view, or has policies, would run code when it is read.
-- * This statement runs before anything is known, so each name and operator in it is qualified: the
--   search_path may have pg_catalog after a schema of strangers.
WITH me AS MATERIALIZED (
    SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname OPERATOR(pg_catalog.=) current_user::pg_catalog.name
), place AS MATERIALIZED (
    SELECT n.oid, n.nspowner, n.nspacl
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.name
), record AS MATERIALIZED (
    SELECT c.oid, c.relkind, c.relrowsecurity FROM place AS p JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) p.oid
    WHERE c.relname OPERATOR(pg_catalog.=) $2::pg_catalog.text::pg_catalog.name
), finding AS (
    SELECT f.kind, f.name, f.role, coalesce(owner.rolname::pg_catalog.text, 'PUBLIC') AS role_name
    FROM (
        SELECT 'owner'::pg_catalog.text, ''::pg_catalog.text, p.nspowner FROM place AS p
        UNION ALL
        SELECT 'create', '', a.grantee FROM place AS p, pg_catalog.aclexplode(p.nspacl) AS a WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'::pg_catalog.text
        UNION ALL
        SELECT 'function', f.oid::pg_catalog.regprocedure::pg_catalog.text, f.proowner
        FROM place AS p JOIN pg_catalog.pg_proc AS f ON f.pronamespace OPERATOR(pg_catalog.=) p.oid
        UNION ALL
        SELECT 'operator', o.oid::pg_catalog.regoperator::pg_catalog.text, o.oprowner
        FROM place AS p JOIN pg_catalog.pg_operator AS o ON o.oprnamespace OPERATOR(pg_catalog.=) p.oid
        UNION ALL
        SELECT CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'v'::pg_catalog."char" THEN 'view' ELSE 'table' END, c.oid::pg_catalog.regclass::pg_catalog.text, c.relowner
        FROM place AS p JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) p.oid WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v}'::pg_catalog."char"[])
    ) AS f (kind, name, role)
    LEFT JOIN pg_catalog.pg_roles AS owner ON owner.oid OPERATOR(pg_catalog.=) f.role
    CROSS JOIN (SELECT d.datdba FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS d
    CROSS JOIN me
    WHERE owner.oid IS NULL
       OR NOT pg_catalog.pg_has_role(CASE WHEN owner.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'::pg_catalog.name THEN d.datdba ELSE owner.oid END,
                                     me.oid, 'MEMBER'::pg_catalog.text)
    LIMIT 1
)
SELECT current_user::pg_catalog.text, pg_catalog.current_database()::pg_catalog.text, p.oid IS NOT NULL,
       CASE WHEN p.oid IS NULL
            THEN pg_catalog.has_database_privilege(pg_catalog.current_database()::pg_catalog.text, 'CREATE'::pg_catalog.text)
            ELSE pg_catalog.has_schema_privilege(p.oid, 'CREATE'::pg_catalog.text) END,
       EXISTS (SELECT FROM record AS r WHERE r.relkind OPERATOR(pg_catalog.=) 'r'::pg_catalog."char"
               AND NOT (r.relrowsecurity AND EXISTS (SELECT FROM pg_catalog.pg_policy AS y WHERE y.polrelid OPERATOR(pg_catalog.=) r.oid))),
       coalesce(f.kind, ''), coalesce(f.name, ''), coalesce(f.role_name, ''), (SELECT me.rolsuper FROM me)
FROM (SELECT) AS one LEFT JOIN place AS p ON true LEFT JOIN finding AS f ON true
