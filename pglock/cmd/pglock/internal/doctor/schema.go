package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglock/pglock-go/internal/schema"
)

// tables is what checkSchema has found.
type tables struct {
	usable  bool  // the tables exist with this version, and the role may use their schema
	scanned *scan // the result of scanLocks
}

// checkSchema reads the catalogs first, which any role may.
func (e *exam) checkSchema(ctx context.Context) ([]Result, error) {
	var exists, usage, callable, recorded bool
	err := e.row(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid AND p.proname = 'pglock_schema_version'),
		       coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
		       EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid AND p.proname = 'pglock_schema_version'
		               AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')),
		       EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'pglock_migrations'
		               AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))
		FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = $1`, []any{e.Schema}, &exists, &usage, &callable, &recorded)
	if err != nil {
		return nil, err
	}
	migrate := "run pglock migrate up --schema " + schema.ShellWord(e.Schema)
	switch {
	case !exists:
		return []Result{fail(fmt.Sprintf("there are no tables of pglock in schema %q", e.Schema), migrate+", or name the right schema")}, nil
	case !usage:
		return []Result{fail(fmt.Sprintf("role %q may not use schema %q", e.role, e.Schema), e.grantRemedy())}, nil
	case !callable:
		return []Result{fail(fmt.Sprintf("role %q lacks EXECUTE on pglock_schema_version", e.role), e.grantRemedy())}, nil
	}
	var version int
	if err := e.row(ctx, "SELECT "+schema.Quote(e.Schema)+".pglock_schema_version()", nil, &version); err != nil {
		return nil, err
	}
	dirty := false
	if recorded {
		err := e.row(ctx, "SELECT coalesce(pg_catalog.bool_or(m.dirty), false) FROM "+e.name("pglock_migrations")+" AS m", nil, &dirty)
		if err != nil {
			return nil, err
		}
	}
	e.usable = version == schema.Version
	different := fmt.Sprintf("schema %q is at version %d, and this pglock needs %d", e.Schema, version, schema.Version)
	switch {
	case dirty:
		return []Result{fail("a migration failed half-way", "run pglock migrate version --schema "+schema.ShellWord(e.Schema)+", which says what to do")}, nil
	case version < schema.Version:
		return []Result{fail(different, migrate)}, nil
	case version > schema.Version:
		return []Result{fail(different, "use a newer pglock")}, nil
	}
	return ok("%q, version %d", e.Schema, version), nil
}

func (e *exam) grantRemedy() string {
	return fmt.Sprintf("let the owner of the tables run SELECT %s.grant_user(%s)", schema.Quote(e.Schema), schema.Literal(e.role))
}

// right is a right that the role lacks.
type right struct{ Object, Right string }

// checkRights lists what grant_user grants, and pg_notify, which PUBLIC has by default. A test
// compares the list with grant_user.
func (e *exam) checkRights(ctx context.Context) ([]Result, error) {
	if !e.usable {
		return nil, nil
	}
	missing, err := rows[right](ctx, e, `
		SELECT c.relname::text, need FROM pg_catalog.pg_class AS c
		CROSS JOIN LATERAL pg_catalog.unnest(CASE
			WHEN c.relname = ANY ('{distributed_locks,lock_waiters,lock_permits,lock_definitions,once_keys}') THEN '{SELECT,INSERT,UPDATE,DELETE}'
			WHEN c.relname = ANY ('{locks_held,locks_waiting,once_started,pglock_migrations}') THEN '{SELECT}'
			ELSE '{}' END::text[]) AS need
		WHERE c.relnamespace = pg_catalog.to_regnamespace($1) AND NOT pg_catalog.has_table_privilege(c.oid, need)
		UNION ALL
		SELECT c.relname::text, 'USAGE' FROM pg_catalog.pg_class AS c
		WHERE c.relnamespace = pg_catalog.to_regnamespace($1) AND c.relname = 'fencing_tokens' AND c.relkind = 'S'
		  AND NOT pg_catalog.has_sequence_privilege(c.oid, 'USAGE')
		UNION ALL
		SELECT p.proname::text, 'EXECUTE' FROM pg_catalog.pg_proc AS p
		WHERE (p.pronamespace = pg_catalog.to_regnamespace($1) AND p.proname = ANY ($2)
		       OR p.oid = 'pg_catalog.pg_notify(text, text)'::pg_catalog.regprocedure)
		  AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
		ORDER BY 1, 2`, schema.Quote(e.Schema), []string{
		"next_fencing_token", "token_follows", "lift_fencing_tokens", "raise_pruned", "require_unpruned", "wake_next", "wake_each",
		"check_fence", "guard", "bind", "require_bound", "advance", "once_claim", "advisory_key",
		"head_weight", "wake_if_fits", "commit_durably", "free_expired_permits", "grant_all_permits", "share_grant",
		"acquire_permits", "release_permits", "await_permit_guards", "downgrade_permits", "upgrade_permits", "resize_permits",
		"create_free", "acquire_all", "join_all",
	})
	if err != nil {
		return nil, err
	}
	hidden, err := rows[struct{ Table string }](ctx, e, `
		SELECT c.relname::text FROM pg_catalog.pg_class AS c
		WHERE c.relnamespace = pg_catalog.to_regnamespace($1) AND c.relname = ANY ('{distributed_locks,lock_waiters,lock_permits}')
		  AND pg_catalog.row_security_active(c.oid)`, schema.Quote(e.Schema))
	if err != nil {
		return nil, err
	}
	var problems []Result
	var lacks []string
	for _, r := range missing {
		if r.Object == "pg_notify" {
			problems = append(problems, warn(fmt.Sprintf("role %q lacks EXECUTE on pg_notify: waiters poll", e.role), "GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO "+schema.Quote(e.role)))
			continue
		}
		lacks = append(lacks, r.Right+" on "+r.Object)
	}
	if len(lacks) > 0 {
		problems = append(problems, fail(fmt.Sprintf("role %q lacks %s", e.role, strings.Join(lacks, ", ")), e.grantRemedy()))
	}
	for _, h := range hidden {
		problems = append(problems, fail(fmt.Sprintf("row security may hide rows of %s: a lock whose row is hidden is never granted", h.Table),
			"ALTER TABLE "+e.name(h.Table)+" DISABLE ROW LEVEL SECURITY, or a policy that shows all rows"))
	}
	return orOK(problems, "role %q may acquire locks and write as their holder", e.role)
}
