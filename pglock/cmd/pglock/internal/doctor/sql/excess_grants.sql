-- Compares the rights on pglock's objects in the schema $1 (quoted) with those that the grant functions
-- and the migrations grant, and with what reading the locks needs.
--
-- Returns one row for each object on which a role, or PUBLIC, has more: the kind and the quoted name
-- of the object, the role, and the rights. Owners and superusers are left out.
--
-- It reads catalogs that any role may read, and no object of the schema.
WITH objects (kind, name, owner, acl, expected, public) AS (
    SELECT 'SCHEMA', n.oid::regnamespace::text, n.nspowner, n.nspacl, '{USAGE}'::text[], '{USAGE}'::text[]
    FROM pg_catalog.pg_namespace AS n WHERE n.oid = pg_catalog.to_regnamespace($1)
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner, a.acl, CASE
               WHEN c.relname = ANY ('{distributed_locks,lock_waiters,lock_permits,lock_definitions,once_keys}') THEN '{SELECT,INSERT,UPDATE,DELETE}'
               WHEN c.relname = 'fencing_tokens' THEN '{USAGE,SELECT}'
               WHEN c.relname = ANY ('{fencing_secret,fencing_epoch}') THEN '{}'
               ELSE '{SELECT}' END::text[], '{SELECT}'
    FROM pg_catalog.pg_class AS c CROSS JOIN LATERAL (
        SELECT c.relacl UNION ALL SELECT t.attacl FROM pg_catalog.pg_attribute AS t WHERE t.attrelid = c.oid AND t.attacl IS NOT NULL) AS a (acl)
    WHERE c.relnamespace = pg_catalog.to_regnamespace($1) AND c.relname = ANY (
        '{distributed_locks,lock_waiters,lock_permits,lock_definitions,once_keys,fencing_tokens,fencing_secret,fencing_epoch,
          fencing_high_water,locks_held,locks_waiting,once_started,protected_tables,pglock_migrations}')
    UNION ALL
    SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)),
           CASE WHEN p.proname = ANY ('{fencing_seal,bound_grants,judge_rows,pin_functions,revoke_defaults}') THEN '{}' ELSE '{EXECUTE}' END::text[],
           CASE WHEN p.proname ~ '^fence_' OR p.proname = ANY ('{check_fence,guard,bind,advance,token_follows,lift_fencing_tokens,
                    raise_pruned,require_unpruned,once_claim}') THEN '{}' ELSE '{EXECUTE}' END::text[]
    FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = pg_catalog.to_regnamespace($1)
)
SELECT o.kind, o.name, coalesce(r.rolname::text, 'PUBLIC'), pg_catalog.string_agg(DISTINCT a.privilege_type, ', ' ORDER BY a.privilege_type)
FROM objects AS o CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) AS a LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee
WHERE a.grantee <> o.owner AND r.rolsuper IS NOT TRUE
  AND (a.privilege_type <> ALL (o.expected) OR a.grantee = 0 AND a.privilege_type <> ALL (o.public))
GROUP BY o.kind, o.name, r.rolname ORDER BY 1, 2, 3
