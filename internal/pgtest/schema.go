package pgtest

import (
	"context"
	_ "embed"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
)

// Creating pglock's schema takes the server a third of a second of CPU, and dropping it half as
// much, so a schema that a test has left as it was created is emptied and given to the next test.

//go:embed empty_schema.sql
var emptySchemaSQL string

//go:embed describe_schema.sql
var describeSchemaSQL string

// used are the schemas of the shared server that are empty again, by their database.
var used struct {
	sync.Mutex
	schemas map[string][]schemaState
}

// schemaState is a schema with the description of its objects, rights and constant rows when it was
// created. A test that changed any of these can't hand its schema on.
type schemaState struct {
	server      *pgx.ConnConfig
	conn        *pgx.Conn // for the next description: a new session would read the catalogs again
	name        string
	description string
}

// Schema returns the name of a schema with all of pglock's tables, which are empty. PUBLIC has no
// rights in it: UserPool and WriterPool have what they are granted, and nothing else. Cleanup
// empties the schema for a later test of this process, or drops it if the test changed more than
// its rows.
func Schema(tb testing.TB, pool *pgxpool.Pool) string {
	tb.Helper()
	server, c := config(tb, URL(tb)), pool.Config().ConnConfig
	if c.Host != server.Host || c.Port != server.Port || c.User != server.User {
		name := SchemaName(tb)
		migrate(tb, pool, name)
		return name
	}
	server.Database = c.Database
	s, found := takeUsed(c.Database)
	if !found {
		s = schemaState{server: server, name: oddName()}
		migrate(tb, pool, s.name)
		var err error
		if s.description, err = s.read(""); err != nil {
			tb.Fatalf("pgtest: describe schema %q: %v", s.name, err)
		}
	}
	tb.Cleanup(func() {
		// It can't be emptied at once if a statement that a test gave up still runs.
		if description, err := s.read(emptySchemaSQL); err != nil || description != s.description {
			s.close()
			dropSchema(tb, server, s.name)
			return
		}
		used.Lock()
		defer used.Unlock()
		if used.schemas == nil {
			used.schemas = make(map[string][]schemaState)
		}
		used.schemas[c.Database] = append(used.schemas[c.Database], s)
	})
	return s.name
}

func takeUsed(database string) (s schemaState, found bool) {
	used.Lock()
	defer used.Unlock()
	schemas := used.schemas[database]
	last := len(schemas) - 1
	if last < 0 {
		return s, false
	}
	used.schemas[database] = schemas[:last]
	return schemas[last], true
}

func migrate(tb testing.TB, pool *pgxpool.Pool, name string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := migrations.Up(ctx, pool, migrations.WithSchema(name)); err != nil {
		tb.Fatalf("pgtest: migrate %q: %v", name, err)
	}
	if _, err := pool.Exec(ctx, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA "+quote(name)+" FROM PUBLIC"); err != nil {
		tb.Fatalf("pgtest: revoke in %q: %v", name, err)
	}
}

// read describes the schema, after the statement of before if there is one, which has the schema's name as its
// parameter.
func (s *schemaState) read(before string) (description string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if s.conn == nil {
		if s.conn, err = pgx.ConnectConfig(ctx, s.server.Copy()); err != nil {
			return "", err
		}
	}
	if before != "" {
		if _, err := s.conn.Exec(ctx, before, pgx.QueryExecModeSimpleProtocol, s.name); err != nil {
			return "", err
		}
	}
	err = s.conn.QueryRow(ctx, describeSchemaSQL, s.name).Scan(&description)
	return description, err
}

func (s *schemaState) close() {
	if s.conn != nil {
		_ = s.conn.Close(context.Background()) // its database may be gone
	}
}

// SchemaName returns the name of a schema that does not exist yet on the shared server. Cleanup
// drops the schema with everything in it. Some of the names need quoting.
func SchemaName(tb testing.TB) string {
	tb.Helper()
	server := config(tb, URL(tb))
	name := oddName()
	tb.Cleanup(func() { dropSchema(tb, server, name) })
	return name
}

func dropSchema(tb testing.TB, server *pgx.ConnConfig, name string) {
	tb.Helper()
	drop := func() error { return execute(server, "DROP SCHEMA IF EXISTS "+quote(name)+" CASCADE") }
	err := drop()
	// A statement that a closed client has given up may still run on the server, and use two tables.
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "40P01" {
		err = drop()
	}
	if err != nil {
		tb.Errorf("pgtest: drop schema %q: %v", name, err)
	}
}

// dropUsed drops the schemas that no test uses, when the process ends.
func dropUsed() error {
	used.Lock()
	defer used.Unlock()
	var errs []error
	for _, schemas := range used.schemas {
		for _, s := range schemas {
			s.close()
			errs = append(errs, execute(s.server, "DROP SCHEMA "+quote(s.name)+" CASCADE"))
		}
	}
	used.schemas = nil
	return errors.Join(errs...)
}
