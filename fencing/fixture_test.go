package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

// fixture is a schema with the lock tables, in which the test writes grants itself.
type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool // as superuser
	writer *pgxpool.Pool // with the rights that migrations.WithWriter grants, and no others
	schema string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	return newFixtureOn(t, pgtest.Pool(t))
}

// newProtectedTable returns a fixture with a protected table.
func newProtectedTable(t *testing.T) (g fixture, table string) {
	t.Helper()
	g = newFixture(t)
	table = g.table("t", columns)
	g.protect(table)
	return g, table
}

// prepared returns a pool on a server that allows prepared transactions.
func prepared(t *testing.T) *pgxpool.Pool {
	t.Helper()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_prepared_transactions": "5"}})
	return pgtest.PoolOn(t, server.URL())
}

func newFixtureOn(t *testing.T, pool *pgxpool.Pool) fixture {
	t.Helper()
	f := fixture{t: t, pool: pool, schema: pgtest.Schema(t, pool)}
	f.writer = pgtest.WriterPool(t, pool, f.schema)
	return f
}

// long reports whether experiments run in their full length, as in `make chaos`.
func long() bool { return os.Getenv("PGLOCK_CHAOS") != "" }

// grant grants the lock for that time, and returns the fence. It locks the row FOR UPDATE first, so
// that it waits for a guard.
func (g fixture) grant(name string, d time.Duration) fencing.Fence {
	g.t.Helper()
	f := fencing.Fence{Schema: g.schema, Name: name}
	err := g.pool.QueryRow(g.t.Context(), g.named(
		`WITH locked AS MATERIALIZED (SELECT FROM pglock.distributed_locks WHERE name = $1 FOR UPDATE)
		 INSERT INTO pglock.distributed_locks AS l (name, token, version, holder, acquired_at, expires_at)
		 SELECT $1, pglock.next_fencing_token(), 1, 'h', clock_timestamp(), clock_timestamp() + $2 * interval '1 microsecond'
		 FROM (SELECT count(*) FROM locked) AS waited
		 ON CONFLICT (name) DO UPDATE SET token = excluded.token, version = l.version + 1, holder = 'h', expires_at = excluded.expires_at
		 RETURNING token`), name, d.Microseconds()).Scan(&f.Token)
	if err != nil {
		g.t.Fatal(err)
	}
	return f
}

// renew extends the grant of the lock by an hour from now.
func (g fixture) renew(name string) {
	g.t.Helper()
	g.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() + interval '1 hour', version = version + 1 WHERE name = $1", name)
}

// end makes the grant of the lock expire.
func (g fixture) end(name string) {
	g.t.Helper()
	g.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp(), version = version + 1 WHERE name = $1", name)
}

// named returns the statement with each "pglock." replaced by the fixture's schema.
func (g fixture) named(statement string) string { return schema.Render(statement, g.schema) }

// sql runs a statement as superuser, written for the default schema.
func (g fixture) sql(statement string, args ...any) {
	g.t.Helper()
	if _, err := g.pool.Exec(g.t.Context(), g.named(statement), args...); err != nil {
		g.t.Fatalf("%s: %v", statement, err)
	}
}

// table creates a table in the fixture's schema, grants the writer its rights, and returns its name
// in SQL.
func (g fixture) table(name, columns string) string {
	g.t.Helper()
	table := schema.Quote(g.schema) + "." + schema.Quote(name)
	g.sql("CREATE TABLE " + table + " " + columns)
	g.open(table)
	return table
}

// open grants the writer the rights on a table.
func (g fixture) open(table string) {
	g.t.Helper()
	g.sql("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + table + " TO " + schema.Quote(pgtest.RoleOf(g.writer)))
}

func (g fixture) protect(table string, opts ...fencing.Option) {
	g.t.Helper()
	if err := fencing.Protect(g.t.Context(), g.pool, table, append(opts, fencing.WithSchema(g.schema))...); err != nil {
		g.t.Fatal(err)
	}
}

// protectAtOnce calls Protect six times at once, as replicas that start together do.
func (g fixture) protectAtOnce(table string) {
	g.t.Helper()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if err := fencing.Protect(g.t.Context(), g.pool, table, fencing.WithSchema(g.schema)); err != nil {
				g.t.Error(err)
			}
		})
	}
	all.Wait()
}

// conn returns a connection of the writer's.
func (g fixture) conn() *pgxpool.Conn {
	g.t.Helper()
	conn, err := g.writer.Acquire(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(conn.Release)
	return conn
}

func (g fixture) begin() pgx.Tx {
	g.t.Helper()
	return g.beginOn(g.writer, pgx.TxOptions{})
}

func (g fixture) beginOn(pool *pgxpool.Pool, o pgx.TxOptions) pgx.Tx {
	g.t.Helper()
	tx, err := pool.BeginTx(g.t.Context(), o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// bound begins a transaction of the writer's that has bound the fences.
func (g fixture) bound(fences ...fencing.Fence) pgx.Tx {
	g.t.Helper()
	tx := g.begin()
	for _, f := range fences {
		if err := fencing.Bind(g.t.Context(), tx, f); err != nil {
			g.t.Fatal(err)
		}
	}
	return tx
}

// as runs statements in one transaction that has bound the fence, and commits unless one fails. It
// returns the error after Explain.
func (g fixture) as(f fencing.Fence, statements ...string) error {
	g.t.Helper()
	return g.commit(g.bound(f), statements...)
}

// unbound is as without a grant.
func (g fixture) unbound(statements ...string) error {
	g.t.Helper()
	return g.commit(g.begin(), statements...)
}

func (g fixture) commit(tx pgx.Tx, statements ...string) error {
	g.t.Helper()
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, s := range statements {
		if _, err := tx.Exec(g.t.Context(), g.named(s)); err != nil {
			return fencing.Explain(err)
		}
	}
	return fencing.Explain(tx.Commit(g.t.Context()))
}

// want fails the test unless err is the sentinel, or nil if the sentinel is nil.
func want(t *testing.T, what string, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: %v, want %v", what, err, sentinel)
	}
}

// dump returns the rows of a table as text, in the order of the first column.
func (g fixture) dump(table string) string {
	g.t.Helper()
	rows, err := g.pool.Query(g.t.Context(), "SELECT t::text FROM "+table+" AS t ORDER BY 1")
	if err != nil {
		g.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// holds fails the test unless the table has those rows.
func (g fixture) holds(table, format string, args ...any) {
	g.t.Helper()
	if got, want := g.dump(table), fmt.Sprintf(format, args...); got != want {
		g.t.Errorf("the table has %s, want %s", got, want)
	}
}

// value reads one value with a statement written for the default schema.
func value[T any](g fixture, statement string, args ...any) T {
	g.t.Helper()
	var v T
	if err := g.pool.QueryRow(g.t.Context(), g.named(statement), args...).Scan(&v); err != nil {
		g.t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// serverVersion is 150018 for 15.18.
func (g fixture) serverVersion() int {
	return value[int](g, "SELECT current_setting('server_version_num')::int")
}

var sprintf = fmt.Sprintf

// elsewhere creates a protected table in another schema, with rights for the writer.
func (g fixture) elsewhere(name string) string {
	g.t.Helper()
	table := g.elsewhereUnprotected(name)
	g.protect(table)
	return table
}

func (g fixture) elsewhereUnprotected(name string) string {
	g.t.Helper()
	other := schema.Quote(pgtest.SchemaName(g.t))
	g.sql("CREATE SCHEMA " + other)
	table := other + "." + schema.Quote(name)
	g.sql("CREATE TABLE " + table + " " + columns)
	g.open(table)
	g.sql("GRANT USAGE ON SCHEMA " + other + " TO PUBLIC")
	return table
}

// role returns a pool as a new role with only the rights of PUBLIC.
func (g fixture) role(kind string) *pgxpool.Pool {
	g.t.Helper()
	role := pgtest.SchemaName(g.t) // as odd as that of a schema
	g.sql("CREATE ROLE " + schema.Quote(role) + " LOGIN PASSWORD 'poor'")
	as := pgtest.PoolOn(g.t, g.pool.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.User, c.ConnConfig.Password = role, "poor"
		c.ConnConfig.Database = g.pool.Config().ConnConfig.Database
		c.ConnConfig.RuntimeParams["application_name"] = kind
	})
	g.t.Cleanup(func() {
		as.Close()
		ctx := context.Background()
		for _, s := range []string{"DROP OWNED BY " + schema.Quote(role) + " CASCADE", "DROP ROLE " + schema.Quote(role)} {
			if _, err := g.pool.Exec(ctx, s); err != nil {
				g.t.Logf("%s: %v", s, err) // its server may be gone by then
			}
		}
	})
	return as
}

// literal returns a text as an SQL string literal.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// migrate creates the lock tables in a schema.
func migrate(t *testing.T, pool *pgxpool.Pool, name string) error {
	t.Helper()
	return migrations.Up(t.Context(), pool, migrations.WithSchema(name))
}
