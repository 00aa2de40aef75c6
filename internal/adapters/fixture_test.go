package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// openClient opens a client as another process would, on tables that are there afterwards.
func openClient(t *testing.T, url string, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	pool := pgtest.PoolOn(t, url)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	c, err := pglock.Open(t.Context(), pool, opts...)
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

// wantNoLock fails if anybody holds an advisory lock of the database, or a lease.
func wantNoLock(t *testing.T, url string) {
	t.Helper()
	pool := pgtest.PoolOn(t, url)
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
	return fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d);", g.key)
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
