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

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
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

type line = rowlock.Line[string]

func TestMain(m *testing.M) { pgtest.Main(m) }

func newFixture(t *testing.T, opts ...func(*pgxpool.Config)) fixture {
	t.Helper()
	pool := pgtest.Pool(t, opts...)
	f := fixture{t: t, pool: pool, db: stdlib.OpenDB(*pool.Config().ConnConfig), stock: rowlock.Stock{
		Table:    rowlock.Table{Name: pgx.Identifier{pgtest.SchemaName(t), "St ock's"}, Key: "the sku"},
		Quantity: `qty"left`,
	}}
	t.Cleanup(func() { _ = f.db.Close() })
	f.sql("CREATE SCHEMA " + f.stock.Name[:1].Sanitize())
	f.sql(`CREATE TABLE STOCK ("the sku" text PRIMARY KEY, "qty""left" integer CHECK ("qty""left" >= 0), warehouse integer)`)
	f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{a,b,c,d,e}'::text[]) v`)
	return f
}

// named replaces STOCK with the table's name.
func (f fixture) named(statement string) string {
	return strings.ReplaceAll(statement, "STOCK", f.stock.Name.Sanitize())
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
	ok(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// beginSQL is begin through database/sql.
func (f fixture) beginSQL() *sqltx.Tx {
	f.t.Helper()
	tx, err := f.db.BeginTx(context.Background(), nil)
	ok(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback() })
	return sqltx.Wrap(tx)
}

// bothWays runs a test with a transaction of pgx, and with one of database/sql.
func bothWays(t *testing.T, test func(t *testing.T, f fixture, begin func() advisory.Tx)) {
	t.Helper()
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		test(t, f, func() advisory.Tx { return f.begin() })
	})
	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		test(t, f, func() advisory.Tx { return f.beginSQL() })
	})
}

// free returns the keys of the rows that are not locked.
func (f fixture) free() string {
	f.t.Helper()
	return value[string](f, f.pool, `WITH l AS MATERIALIZED (SELECT "the sku" AS k FROM STOCK FOR UPDATE SKIP LOCKED) SELECT coalesce(string_agg(k, '' ORDER BY k), '') FROM l`)
}

// usable checks that the transaction is usable and unchanged, and that no row is locked.
func (f fixture) usable(tx advisory.Tx, setting string) {
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
	pgtest.Eventually(f.t, fmt.Sprintf("%d backends wait", n), func() bool {
		return value[int](f, f.pool, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 in query) > 0`,
			f.stock.Name.Sanitize()) >= n
	})
}

// later runs a call in a goroutine.
func later(run func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	return done
}

func second[T any](_ T, err error) error { return err }

// lock is a call of Lock for its error.
func (f fixture) lock(ctx context.Context, tx advisory.Tx, keys string, opts ...rowlock.Option) error {
	return second(rowlock.Lock(ctx, tx, f.stock.Table, strings.Split(keys, ""), opts...))
}

// locked locks the keys, one letter each, and returns those that are locked.
func (f fixture) locked(tx advisory.Tx, keys string, opts ...rowlock.Option) string {
	f.t.Helper()
	got, err := rowlock.Lock(f.t.Context(), tx, f.stock.Table, strings.Split(keys, ""), opts...)
	if err != nil {
		f.t.Errorf("%s: %v", keys, err)
	}
	return strings.Join(got, "")
}

// claim claims up to n rows with the columns and the rest of the SELECT.
func (f fixture) claim(ctx context.Context, tx advisory.Tx, rest string, args ...any) (string, error) {
	rows, err := rowlock.Claim(ctx, tx, pgx.RowTo[string], "s", f.named(`SELECT "the sku" FROM STOCK AS s `+rest), args...)
	return strings.Join(rows, ""), err
}

// quantities checks the committed quantities.
func (f fixture) quantities(want string) {
	f.t.Helper()
	if got := value[string](f, f.pool, `SELECT string_agg("the sku" || "qty""left", ' ' ORDER BY "the sku", warehouse) FROM STOCK`); got != want {
		f.t.Errorf("stock: %s, want %s", got, want)
	}
}

// everyCall returns a simple call of each function.
func everyCall(f fixture) map[string]func(context.Context, advisory.Tx) error {
	return map[string]func(context.Context, advisory.Tx) error{
		"Lock":          func(ctx context.Context, tx advisory.Tx) error { return f.lock(ctx, tx, "cb") },
		"Lock, missing": func(ctx context.Context, tx advisory.Tx) error { return f.lock(ctx, tx, "cx") },
		"Lock, NoWait":  func(ctx context.Context, tx advisory.Tx) error { return f.lock(ctx, tx, "c", rowlock.NoWait) },
		"Lock, ForShare with deadline": func(ctx context.Context, tx advisory.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return f.lock(ctx, tx, "c", rowlock.ForShare)
		},
		"Reserve": func(ctx context.Context, tx advisory.Tx) error {
			return second(rowlock.Reserve(ctx, tx, f.stock, []line{{"c", "1"}}))
		},
		"Reserve, short": func(ctx context.Context, tx advisory.Tx) error {
			return second(rowlock.Reserve(ctx, tx, f.stock, []line{{"c", "99"}, {"x", "1"}}))
		},
		"Restock": func(ctx context.Context, tx advisory.Tx) error {
			return second(rowlock.Restock(ctx, tx, f.stock, []line{{"c", "1"}}))
		},
		"Claim": func(ctx context.Context, tx advisory.Tx) error { return second(f.claim(ctx, tx, "LIMIT 2")) },
	}
}

var ok = locktest.OK
