package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// begin returns a transaction that the test's end rolls back.
func begin(t *testing.T, pool *pgxpool.Pool, options ...pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), append(options, pgx.TxOptions{})[0])
	ok(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// holder returns a transaction that holds the key.
func holder(t *testing.T, pool *pgxpool.Pool, key advisory.Key) pgx.Tx {
	t.Helper()
	tx := begin(t, pool)
	ok(t, advisory.Lock(t.Context(), tx, key))
	return tx
}

// held returns how many advisory locks the transaction's session holds or waits for.
func held(t *testing.T, tx pgx.Tx) int {
	t.Helper()
	return count(t, tx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
}

// locksOn returns how many sessions hold or wait for the key, in this test's database.
func locksOn(t *testing.T, pool *pgxpool.Pool, key advisory.Key) int {
	t.Helper()
	classid, objid, objsubid := key.PgLocks()
	return count(t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND objsubid = $3
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, classid, objid, objsubid)
}

// waitsFor returns how many sessions wait for the key, in this test's database.
func waitsFor(t *testing.T, pool *pgxpool.Pool, key advisory.Key) int {
	t.Helper()
	classid, objid, objsubid := key.PgLocks()
	return count(t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1 AND objid = $2 AND objsubid = $3
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, classid, objid, objsubid)
}

func count(t *testing.T, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// usable fails the test unless tx can run a statement.
func usable(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the transaction can't be used any more: %v", err)
	}
}

// setting returns a setting of the transaction.
func setting(t *testing.T, tx pgx.Tx, name string) (value string) {
	t.Helper()
	ok(t, tx.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
	return value
}

// whole fails the test unless all connections return to the pool.
func whole(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Eventually(t, "the pool's connections are back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// soon returns a context that ends after d.
func soon(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// proxied returns a pool on the shared server through a fault proxy.
func proxied(t *testing.T, opts ...func(*pgxpool.Config)) (*faultproxy.Proxy, *pgxpool.Pool) {
	t.Helper()
	url := pgtest.URL(t)
	proxy := faultproxy.New(t, address(t, url))
	return proxy, pgtest.PoolOn(t, proxy.URL(url), opts...)
}

// address returns the host and port of a server.
func address(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	ok(t, err)
	return net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
}

// pairPool returns a pool of two connections, and a function that returns how many sessions it has
// in the server.
func pairPool(t *testing.T, direct *pgxpool.Pool) (pool *pgxpool.Pool, sessions func() int) {
	t.Helper()
	name := "pool of " + t.Name()
	pool = pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 2
		c.ConnConfig.RuntimeParams["application_name"] = name
	})
	return pool, func() int {
		t.Helper()
		return count(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name)
	}
}

func noWork(context.Context, pgx.Tx) error { return nil }

func second[T any](_ T, err error) error { return err }

// isAll reports whether err is each of the others.
func isAll(err error, all ...error) bool {
	for _, other := range all {
		if !errors.Is(err, other) {
			return false
		}
	}
	return true
}

var ok = locktest.OK
