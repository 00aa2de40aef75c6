// Package locktest has fixtures for tests of programs that use locks: clients, statements, and
// gates that stop a migration or a job until the test opens them.
package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// Client opens a client, as another process would, and creates the tables if they are missing.
func Client(tb testing.TB, url string, opts ...pglock.Option) *pglock.Client {
	tb.Helper()
	pool := pgtest.PoolOn(tb, url)
	if err := migrations.Up(tb.Context(), pool); err != nil {
		tb.Fatal(err)
	}
	return ClientOn(tb, pool, opts...)
}

// ClientOn opens a client on tables that exist. The end of the test closes it.
func ClientOn(tb testing.TB, pool *pgxpool.Pool, opts ...pglock.Option) *pglock.Client {
	tb.Helper()
	c := Open(tb, pool, opts...)
	tb.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil && !errors.Is(err, pglock.ErrLost) { // a lease that the test took away
			tb.Error(err)
		}
	})
	return c
}

// Open opens a client that the test closes. A machine that stands still for ten seconds fails no test.
func Open(tb testing.TB, pool *pgxpool.Pool, opts ...pglock.Option) (c *pglock.Client) {
	tb.Helper()
	var err error
	pgtest.Eventually(tb, "an open client", func() bool {
		c, err = pglock.Open(tb.Context(), pool, opts...)
		return !errors.Is(err, pglock.ErrUnavailable)
	})
	OK(tb, err)
	return c
}

// Exec runs a statement, and fails the test if that fails.
func Exec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// Scan returns the one value of a query.
func Scan[T any](tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	tb.Helper()
	if err := pool.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// NoLockLeft waits until no session of the database holds an advisory lock and no lease is held.
func NoLockLeft(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	pgtest.Eventually(tb, "no advisory lock is left", func() bool {
		return Scan[int](tb, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0
	})
	if Scan[bool](tb, pool, "SELECT to_regclass('pglock.distributed_locks') IS NOT NULL") {
		pgtest.Eventually(tb, "no lease is left", func() bool {
			return Scan[int](tb, pool, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL") == 0
		})
	}
}

// PoorRole creates a role that may log in and nothing else, and returns a pool that connects as it.
func PoorRole(tb testing.TB, url, role string) *pgxpool.Pool {
	tb.Helper()
	admin := pgtest.PoolOn(tb, url)
	Exec(tb, admin, "CREATE ROLE "+schema.Quote(role)+" LOGIN PASSWORD 'poor'")
	tb.Cleanup(func() {
		_, err := admin.Exec(context.Background(), "DROP OWNED BY "+schema.Quote(role)+" CASCADE; DROP ROLE "+schema.Quote(role))
		if err != nil {
			tb.Error(err)
		}
	})
	return pgtest.PoolOn(tb, url, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "poor" })
}

// All returns the lock of these names together.
func All(client *pglock.Client, names ...string) pglock.Lock {
	locks := make([]pglock.Lock, len(names))
	for i, name := range names {
		locks[i] = client.Lock(name)
	}
	return client.All(locks...)
}

// OK ends the test unless err is nil.
func OK(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// WaitingAs waits until n sessions of the pool's role wait for a lock of another transaction.
func WaitingAs(tb testing.TB, admin, pool *pgxpool.Pool, n int) {
	tb.Helper()
	pgtest.Eventually(tb, "statements wait for a lock", func() bool {
		return Scan[int](tb, admin, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = $1", pgtest.RoleOf(pool)) == n
	})
}

// Receive returns the next value from c. It ends the test if none comes.
func Receive[T any](tb testing.TB, c <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(pgtest.Patience):
		tb.Fatal("nothing came")
	}
	return v
}
