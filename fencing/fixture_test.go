package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
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
	ok(g.t, err)
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
	locktest.Exec(g.t, g.pool, g.named(statement), args...)
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

// reset gives the table one row: 1, 0 and that token.
func (g fixture) reset(table string, token fencing.Token) {
	g.t.Helper()
	g.replica("DELETE FROM "+table, sprintf("INSERT INTO %s (id, v, fence_token) VALUES (1, 0, %d)", table, token))
}

// replica runs statements as superuser that fire no trigger.
func (g fixture) replica(statements ...string) {
	g.t.Helper()
	g.sql("SET session_replication_role = replica; " + strings.Join(statements, "; ") + "; RESET session_replication_role")
}

// open grants the writer the rights on a table.
func (g fixture) open(table string) {
	g.t.Helper()
	g.sql("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + table + " TO " + schema.Quote(pgtest.RoleOf(g.writer)))
}

func (g fixture) protect(table string, opts ...fencing.Option) {
	g.t.Helper()
	ok(g.t, fencing.Protect(g.t.Context(), g.pool, table, append(opts, fencing.WithSchema(g.schema))...))
}

// conn returns a connection of the writer's.
func (g fixture) conn() *pgxpool.Conn {
	g.t.Helper()
	conn, err := g.writer.Acquire(g.t.Context())
	ok(g.t, err)
	g.t.Cleanup(conn.Release)
	return conn
}

func (g fixture) begin() pgx.Tx {
	g.t.Helper()
	return g.beginOn(g.writer, pgx.TxOptions{})
}

// beginOn fails if the pool has no connection left, because a test has kept them all in transactions that it
// has not ended, instead of waiting for ever.
func (g fixture) beginOn(pool *pgxpool.Pool, o pgx.TxOptions) pgx.Tx {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	tx, err := pool.BeginTx(ctx, o)
	ok(g.t, err)
	g.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// bound begins a transaction of the writer's that has bound the fences.
func (g fixture) bound(fences ...fencing.Fence) pgx.Tx {
	g.t.Helper()
	tx := g.begin()
	for _, f := range fences {
		ok(g.t, fencing.Bind(g.t.Context(), tx, f))
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

var ok = locktest.OK

// each runs the test for each of the cases, as parallel subtests.
func each[V any](t *testing.T, cases map[string]V, test func(t *testing.T, name string, v V)) {
	t.Helper()
	for name := range cases {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, name, cases[name]) })
	}
}

// wantStale fails the test unless err is that StaleError.
func wantStale(t *testing.T, what string, err error, stale fencing.StaleError) {
	t.Helper()
	var got *fencing.StaleError
	if !errors.Is(err, fencing.ErrStale) || !errors.As(err, &got) || *got != stale {
		t.Errorf("%s: %v, want %v", what, err, &stale)
	}
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
	ok(g.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(g.t, err)
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
	return locktest.Scan[T](g.t, g.pool, g.named(statement), args...)
}

// free reports whether a takeover of the lock would not have to wait.
func (g fixture) free(name string) bool {
	g.t.Helper()
	return value[bool](g, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = $1 FOR UPDATE SKIP LOCKED)", name)
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// exec ends the test unless the statement, written for the default schema, succeeds.
func (g fixture) exec(db execer, statement string, args ...any) {
	g.t.Helper()
	if _, err := db.Exec(g.t.Context(), g.named(statement), args...); err != nil {
		g.t.Fatalf("%s: %v", statement, err)
	}
}

// savepoint calls do after a savepoint of tx, and rolls back to it.
func (g fixture) savepoint(tx pgx.Tx, do func(inner pgx.Tx)) {
	g.t.Helper()
	inner, err := tx.Begin(g.t.Context())
	ok(g.t, err)
	do(inner)
	ok(g.t, inner.Rollback(g.t.Context()))
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

// role returns a pool as a new role with only the rights of PUBLIC. Its name is as odd as that of a
// schema.
func (g fixture) role() *pgxpool.Pool {
	g.t.Helper()
	return locktest.PoorRole(g.t, g.pool.Config().ConnString(), pgtest.SchemaName(g.t))
}

// literal returns a text as an SQL string literal.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// migrate creates the lock tables in a schema.
func migrate(t *testing.T, pool *pgxpool.Pool, name string) error {
	t.Helper()
	return migrations.Up(t.Context(), pool, migrations.WithSchema(name))
}
