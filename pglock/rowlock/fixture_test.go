package rowlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// fixture is a schema with a stock table whose names need quotes.
type fixture struct {
	t     *testing.T
	pool  *pgxpool.Pool
	db    *sql.DB
	stock rowlock.Stock
}

// item is a row of the table.
type item struct {
	SKU  string `db:"the sku"`
	Left int32  `db:"qty\"left"`
}

func newFixture(t *testing.T, opts ...func(*pgxpool.Config)) fixture {
	t.Helper()
	pool := pgtest.Pool(t, opts...)
	f := fixture{t: t, pool: pool, db: stdlib.OpenDB(*pool.Config().ConnConfig), stock: rowlock.Stock{
		Table:    rowlock.Table{Name: pgx.Identifier{pgtest.SchemaName(t), "St ock's"}, Key: "the sku"},
		Quantity: `qty"left`,
	}}
	t.Cleanup(func() { _ = f.db.Close() })
	f.sql("CREATE SCHEMA " + f.stock.Name[:1].Sanitize())
	f.sql(`CREATE TABLE STOCK ("the sku" text PRIMARY KEY, "qty""left" integer CHECK ("qty""left" >= 0), warehouse integer, due timestamptz)`)
	f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{a,b,c,d,e}'::text[]) v`)
	return f
}

// named replaces STOCK with the table's name.
func (f fixture) named(statement string) string {
	return strings.ReplaceAll(statement, "STOCK", f.stock.String())
}

// runner runs statements: a pool or transaction.
type runner interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (f fixture) sql(statement string, args ...any) { f.t.Helper(); f.in(f.pool, statement, args...) }

func (f fixture) in(r runner, statement string, args ...any) {
	f.t.Helper()
	if _, err := r.Exec(f.t.Context(), f.named(statement), args...); err != nil {
		f.t.Fatalf("%s: %v", statement, err)
	}
}

// value reads one value.
func value[T any](f fixture, r runner, statement string, args ...any) T {
	f.t.Helper()
	var v T
	if err := r.QueryRow(f.t.Context(), f.named(statement), args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// begin returns a transaction that is rolled back on cleanup.
func (f fixture) begin() pgx.Tx {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// beginSQL is begin through database/sql.
func (f fixture) beginSQL() *sqltx.Tx {
	f.t.Helper()
	tx, err := f.db.BeginTx(context.Background(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tx.Rollback() })
	return sqltx.Wrap(tx)
}

// bothWays runs a test with a transaction of pgx, and with one of database/sql.
func bothWays(t *testing.T, test func(t *testing.T, f fixture, begin func() rowlock.Tx)) {
	t.Helper()
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		test(t, f, func() rowlock.Tx { return f.begin() })
	})
	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		test(t, f, func() rowlock.Tx { return f.beginSQL() })
	})
}

// free returns the keys of the rows that are not locked.
func (f fixture) free() string {
	f.t.Helper()
	return value[string](f, f.pool, `WITH l AS MATERIALIZED (SELECT "the sku" AS k FROM STOCK FOR UPDATE SKIP LOCKED) SELECT coalesce(string_agg(k, '' ORDER BY k), '') FROM l`)
}

// usable checks that the transaction is usable and unchanged, and that no row is locked.
func (f fixture) usable(tx rowlock.Tx, setting string) {
	f.t.Helper()
	if got := value[string](f, tx, "SHOW lock_timeout"); got != setting {
		f.t.Errorf("lock_timeout is %s, it was %s", got, setting)
	}
	if free := f.free(); free != "abcde" {
		f.t.Errorf("only %q are free", free)
	}
	var pg *pgconn.PgError
	if _, err := tx.Exec(f.t.Context(), "ROLLBACK TO SAVEPOINT pglock_rows"); !errors.As(err, &pg) || pg.Code != "3B001" {
		f.t.Errorf("the savepoint is still set: %v", err)
	}
}

// waiting waits until n backends wait for a lock in this test's schema.
func (f fixture) waiting(n int) {
	f.t.Helper()
	pgtest.Eventually(f.t, 10*time.Second, fmt.Sprintf("%d backends wait", n), func() bool {
		return value[int](f, f.pool, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 in query) > 0`,
			f.stock.String()) >= n
	})
}

// later runs a call in a goroutine.
func later(run func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	return done
}

// values returns the values in their order.
func values[K comparable, V any](results rowlock.ByKey[K, V]) (all []V) {
	for _, v := range results.All() {
		all = append(all, v)
	}
	return all
}

// skus returns the keys of the rows, in their order.
func skus(items []item) (s string) {
	for _, i := range items {
		s += i.SKU
	}
	return s
}
