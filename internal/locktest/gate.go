package locktest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// Gate is an advisory lock at which a migration waits until the test opens it.
type Gate struct {
	Key int // of the advisory lock

	tb   testing.TB
	pool *pgxpool.Pool
	conn *pgxpool.Conn // holds the lock; nil once the gate is open
}

var gates atomic.Int64

// NewGate returns a closed gate. The end of the test opens it.
func NewGate(tb testing.TB, pool *pgxpool.Pool) *Gate {
	tb.Helper()
	conn, err := pool.Acquire(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	g := &Gate{int(1_000_000 + gates.Add(1)), tb, pool, conn}
	if _, err := conn.Exec(tb.Context(), "SELECT pg_advisory_lock($1)", g.Key); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(g.Open)
	return g
}

// SQL returns a statement that waits at the gate. Its lock ends with its transaction.
func (g *Gate) SQL() string {
	return fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d);", g.Key)
}

// waiting ends a query for the sessions at the gate. Tests in other databases may have gates with that key.
const waiting = " FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1 " +
	"AND database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"

// Reached waits until a session waits at the gate, and returns its server process.
func (g *Gate) Reached() (pid int) {
	g.tb.Helper()
	pgtest.Eventually(g.tb, "a session is at the gate", func() bool {
		pid = Scan[int](g.tb, g.pool, "SELECT coalesce(max(pid), 0)"+waiting, g.Key)
		return pid != 0
	})
	return pid
}

// Waiting returns how many sessions wait at the gate.
func (g *Gate) Waiting() int {
	g.tb.Helper()
	return Scan[int](g.tb, g.pool, "SELECT count(*)"+waiting, g.Key)
}

// Open opens the gate. It may be called several times.
func (g *Gate) Open() {
	if g.conn == nil {
		return
	}
	if _, err := g.conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", g.Key); err != nil {
		g.tb.Error(err)
	}
	g.conn.Release()
	g.conn = nil
}
