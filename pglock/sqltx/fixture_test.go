package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// fixture is the shared server, through pgx and through database/sql.
type fixture struct {
	t    *testing.T
	pool *pgxpool.Pool
	db   *sql.DB
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return fixture{t, pool, db}
}

// begin returns a transaction of database/sql that is rolled back on cleanup.
func (f fixture) begin() (*sql.Tx, *sqltx.Tx) {
	f.t.Helper()
	tx, err := f.db.BeginTx(context.Background(), nil)
	ok(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback() })
	return tx, sqltx.Wrap(tx)
}

// pgx returns a transaction of pgx that is rolled back on cleanup.
func (f fixture) pgx() pgx.Tx {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	ok(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (f fixture) exec(tx interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, statement string, args ...any) {
	f.t.Helper()
	if _, err := tx.Exec(f.t.Context(), statement, args...); err != nil {
		f.t.Fatalf("%s: %v", statement, err)
	}
}

// value reads one value.
func value[T any](t *testing.T, tx interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := tx.QueryRow(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// waiting waits until a backend waits for a lock.
func (f fixture) waiting(pid int) {
	f.t.Helper()
	pgtest.Eventually(f.t, "the statement waits", func() bool {
		return value[bool](f.t, f.pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')", pid)
	})
}

// queryError returns the error of Query, and checks that the rows have it too.
func queryError(t *testing.T, tx *sqltx.Tx) error {
	t.Helper()
	found, err := tx.Query(t.Context(), "SELECT 1")
	defer found.Close() //nolint:staticcheck // rows that carry the error are what is tested
	if !errors.Is(err, found.Err()) {
		t.Errorf("Query returned %v, and its rows %v", err, found.Err())
	}
	return err
}

var ok = locktest.OK
