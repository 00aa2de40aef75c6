package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// state describes a schema and the role that reads it. Reading it needs no other right.
type state struct {
	role, database string
	schemaExists   bool
	mayCreate      bool // objects in the schema, or the schema if it is missing
	recorded       bool // the version table exists, and reading it runs no code
	finding        schema.Stranger
	version        int // 0 without tables
	dirty          bool
	found          int   // if dirty or not recorded: the version of the tables, -1 if it could not be read
	newer          error // the version is one of a later module
}

// dirtyError returns the error for a dirty state.
func (s state) dirtyError(cfg config, cause error) error {
	return &DirtyError{Schema: cfg.schema, Version: s.version, Found: s.found, Cause: cause}
}

func readState(ctx context.Context, pool *pgxpool.Pool, cfg config) (state, error) {
	var s state
	err := pool.QueryRow(ctx, schema.ReadState, cfg.schema, schema.VersionTable).Scan(&s.role, &s.database, &s.schemaExists, &s.mayCreate,
		&s.recorded, &s.finding.Kind, &s.finding.Name, &s.finding.Role, nil)
	if err != nil {
		return s, cfg.explain(err)
	}
	cfg.role = s.role
	var version *int
	var dirty *bool
	if s.recorded {
		err = pool.QueryRow(ctx, "SELECT v.version, v.dirty FROM (SELECT) one LEFT JOIN "+cfg.versionTable()+" v ON true").Scan(&version, &dirty)
		if err != nil {
			return s, cfg.explainWith(err, cfg.statement(grant{"grant_user", cfg.role}))
		}
	}
	if version != nil {
		s.version, s.dirty = max(*version, 0), *dirty
	}
	if version == nil || s.dirty {
		s.found = constant(ctx, pool, cfg.schema, "pglock_schema_version")
	}
	if version == nil { // there are no tables, or a tool has truncated all tables, or row security hides the record
		s.version = max(s.found, 0)
	}
	if s.version <= schema.Version {
		return s, nil
	}
	oldest := constant(ctx, pool, cfg.schema, "pglock_oldest_client")
	if oldest <= 0 {
		oldest = s.version
	}
	s.newer = &schema.Error{Kind: ErrNewer, Name: cfg.schema, Found: s.version, Oldest: oldest, Want: schema.Version}
	return s, schema.Check(cfg.schema, s.version, oldest)
}

// constant returns the number that a function of the schema returns, which a migration replaces in
// its own transaction: 0 without the function, -1 if it can't be read. It reads the text of the
// function instead of calling it, because the schema may be a stranger's.
func constant(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, schemaName, function string,
) int {
	var number int
	err := db.QueryRow(ctx, `
		SELECT coalesce(pg_catalog.max(coalesce(pg_catalog.substring(p.prosrc, '^SELECT ([0-9]{1,9})$'), '-1')::pg_catalog.int4), 0)
		FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
		WHERE n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.name AND p.proname OPERATOR(pg_catalog.=) $2::pg_catalog.text::pg_catalog.name`, schemaName, function).Scan(&number)
	if err != nil {
		return -1
	}
	return number
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

// checkTrust returns an error that wraps ErrUntrusted if another role could run code as this one.
// The error names the remedy.
func (s state) checkTrust(cfg config) error {
	if s.finding == (schema.Stranger{}) {
		return nil
	}
	what, remedy, _ := s.finding.Explain(cfg.schema)
	if remedy += ", or use another schema"; s.finding.Kind == "owner" {
		remedy = fmt.Sprintf("migrate as that role, or use another schema; or, if that role may do all that %q may, ALTER SCHEMA %s OWNER TO %s",
			s.role, schema.Quote(cfg.schema), schema.Quote(s.role))
	}
	return errs.Errorf("%w: schema %q %s, so a migration could run code of others as %q: %s", ErrUntrusted, cfg.schema, what, s.role, remedy)
}

// checkServer returns an error that wraps schema.ErrSchema if locks are not safe on the server. A
// role that may not call the function gets no error here, but from pglock.Open.
func checkServer(ctx context.Context, own *pgxpool.Pool, cfg config) error {
	var why *string
	err := own.QueryRow(ctx, "SELECT "+schema.Quote(cfg.schema)+".unsafe_server()").Scan(&why)
	switch {
	case pgtx.SQLState(err) == pgtx.InsufficientPrivilege:
		return nil
	case err == nil && why != nil:
		err = schema.Unsafe(*why)
	}
	return cfg.explain(err)
}
