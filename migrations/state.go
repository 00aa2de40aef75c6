package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// state is what a look at the database tells, without any right but to read.
type state struct {
	role, database string
	schemaExists   bool
	mayCreate      bool // in the schema, or the schema itself
	version        int  // 0 without tables
	dirty          bool
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
		return s, fmt.Errorf("migrations: %w", err)
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
		return s, cfg.explain(err)
	}
	if version == nil { // everything was migrated down
		return s, nil
	}
	s.version, s.dirty = max(*version, 0), *dirty
	if s.version > schema.Version {
		return s, schema.Check(cfg.schema, s.version)
	}
	return s, nil
}

// checkRights returns a *PrivilegeError where the first statement would fail
// for lack of a right, so that the error names it and nothing was begun.
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
