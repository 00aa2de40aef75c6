package migrations

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// state describes a schema and the role that reads it. Reading it needs no other right.
type state struct {
	role, database string
	schemaExists   bool
	mayCreate      bool // objects in the schema, or the schema if it is missing
	version        int  // 0 without tables
	dirty          bool
	found          int // if dirty: the version of the tables, -1 if it could not be read
}

// dirtyError returns the error for a dirty state.
func (s state) dirtyError(cfg config, cause error) error {
	return &DirtyError{Schema: cfg.schema, Version: s.version, Found: s.found, Cause: cause}
}

func readState(ctx context.Context, pool *pgxpool.Pool, cfg config) (state, error) {
	var s state
	var recorded bool
	err := pool.QueryRow(ctx, `
		SELECT current_user::text, current_database()::text, n.oid IS NOT NULL,
		       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
		            ELSE has_schema_privilege(n.oid, 'CREATE') END,
		       EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname = $2::text)
		FROM (SELECT) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1::text`,
		cfg.schema, versionTable,
	).Scan(&s.role, &s.database, &s.schemaExists, &s.mayCreate, &recorded)
	if err != nil {
		return s, cfg.explain(err)
	}
	cfg.role = s.role
	if !recorded {
		return s, nil
	}
	var version *int
	var dirty *bool
	err = pool.QueryRow(ctx, "SELECT v.version, v.dirty FROM (SELECT) one LEFT JOIN "+
		schema.Quote(cfg.schema)+"."+versionTable+" v ON true").Scan(&version, &dirty)
	if err != nil {
		return s, cfg.explainRead(err)
	}
	if version == nil { // Down has removed the tables
		return s, nil
	}
	s.version, s.dirty = max(*version, 0), *dirty
	if s.dirty {
		s.found = tablesVersion(ctx, pool, cfg)
	}
	if s.version > schema.Version {
		return s, schema.Check(cfg.schema, s.version)
	}
	return s, nil
}

// tablesVersion returns the version that a function of the schema returns, which each migration
// replaces in its own transaction: 0 without tables, -1 if it can't be read.
func tablesVersion(ctx context.Context, pool *pgxpool.Pool, cfg config) int {
	function := schema.Quote(cfg.schema) + ".pglock_schema_version()"
	var exists bool
	err := pool.QueryRow(ctx, "SELECT pg_catalog.to_regprocedure($1::text) IS NOT NULL", function).Scan(&exists)
	if err != nil {
		return -1
	}
	if !exists {
		return 0
	}
	var version int
	if err := pool.QueryRow(ctx, "SELECT "+function).Scan(&version); err != nil {
		return -1
	}
	return version
}

// checkRights returns a *PrivilegeError if the first statement would fail for lack of a right. The
// error names the right, and no migration has begun.
func (s state) checkRights(cfg config) error {
	if s.mayCreate {
		return nil
	}
	on := "SCHEMA " + schema.Quote(cfg.schema)
	if !s.schemaExists {
		on = "DATABASE " + schema.Quote(s.database)
	}
	return &PrivilegeError{Role: s.role, Right: "CREATE", On: on}
}
