package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// source makes a source of the SQL texts: 1_m, 2_m, and so on.
func source(texts ...string) migrations.Source {
	files := fstest.MapFS{}
	for i, sql := range texts {
		files[fmt.Sprintf("%03d_m.up.sql", i+1)] = &fstest.MapFile{Data: []byte(sql)}
	}
	return migrations.Files(files, ".")
}

// journal creates a table in which migrations note that they were carried out, and returns
// the statement for it.
func journal(t *testing.T, pool *pgxpool.Pool) (note func(version int) string) {
	t.Helper()
	mustExec(t, pool, "CREATE TABLE journal (version int)")
	return func(version int) string { return fmt.Sprintf("INSERT INTO journal VALUES (%d);", version) }
}

// wantJournal fails unless each of the versions up to last was carried out once.
func wantJournal(t *testing.T, pool *pgxpool.Pool, last int) {
	t.Helper()
	var got, want []string
	if err := pool.QueryRow(t.Context(), "SELECT coalesce(array_agg(version::text ORDER BY version), '{}') FROM journal").Scan(&got); err != nil {
		t.Fatal(err)
	}
	for i := range last {
		want = append(want, fmt.Sprint(i+1))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("carried out: %v, want %v", got, want)
	}
}

func wantVersion(t *testing.T, pool *pgxpool.Pool, version int, dirty bool) {
	t.Helper()
	var gotVersion int
	var gotDirty bool
	if err := pool.QueryRow(t.Context(), "SELECT version, dirty FROM schema_migrations").Scan(&gotVersion, &gotDirty); err != nil {
		t.Fatal(err)
	}
	if gotVersion != version || gotDirty != dirty {
		t.Errorf("version %d, dirty %v, want %d, %v", gotVersion, gotDirty, version, dirty)
	}
}

// wantNoLock fails if anybody holds an advisory lock of the database, or a lease.
func wantNoLock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Eventually(t, patience, "no advisory lock is left", func() bool {
		return scan[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0
	})
	if scan[bool](t, pool, "SELECT to_regclass('pglock.distributed_locks') IS NOT NULL") {
		pgtest.Eventually(t, patience, "no lease is left", func() bool {
			return scan[int](t, pool, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL") == 0
		})
	}
}

func mustExec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// gate is a place where a migration stops until the test lets it go on.
type gate struct {
	t    *testing.T
	pool *pgxpool.Pool
	conn *pgxpool.Conn
	key  int
}

var gates atomic.Int64

// newGate closes a gate. The migration goes through by gate.sql.
func newGate(t *testing.T, pool *pgxpool.Pool) *gate {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t, pool, conn, int(1_000_000 + gates.Add(1))}
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock($1)", g.key); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.open)
	return g
}

// sql waits at the gate, and leaves no lock behind.
func (g *gate) sql() string {
	return fmt.Sprintf("DO $$ BEGIN PERFORM pg_advisory_xact_lock_shared(%d); END $$;", g.key)
}

// reached waits until somebody stands at the gate, and returns its server process.
func (g *gate) reached() (pid int) {
	g.t.Helper()
	pgtest.Eventually(g.t, patience, "somebody is at the gate", func() bool {
		pid = scan[int](g.t, g.pool, "SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1", g.key)
		return pid != 0
	})
	return pid
}

func (g *gate) open() {
	if g.conn == nil {
		return
	}
	if _, err := g.conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", g.key); err != nil {
		g.t.Error(err)
	}
	g.conn.Release()
	g.conn = nil
}

// lockForm is a kind of lock for a run.
type lockForm struct {
	name string
	opts func(t *testing.T, url string) []migrations.RunOption
}

// forms are both, for tests that hold for both. A lease has a client for each replica.
var forms = []lockForm{
	{"advisory", func(*testing.T, string) []migrations.RunOption { return nil }},
	{"lease", func(t *testing.T, url string) []migrations.RunOption {
		t.Helper()
		return []migrations.RunOption{migrations.WithLease(leaseClient(t, url), pglock.WithTTL(3*time.Second))}
	}},
}

func leaseClient(t *testing.T, url string) *pglock.Client {
	t.Helper()
	pool := pgtest.PoolOn(t, url)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return openClient(t, pool)
}

func openClient(t *testing.T, pool *pgxpool.Pool) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil && !errors.Is(err, pglock.ErrLost) { // a lease that the test took away
			t.Error(err)
		}
	})
	return c
}

func each(t *testing.T, test func(t *testing.T, form lockForm)) {
	t.Helper()
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			test(t, form)
		})
	}
}
