package once_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// fixture is a schema with a table of effects. Its roles have the rights of migrations.WithUser and
// no others.
type fixture struct {
	t      *testing.T
	admin  *pgxpool.Pool
	pool   *pgxpool.Pool // of a user
	schema string
	in     once.SchemaOption
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	admin := pgtest.Pool(t)
	name := pgtest.Schema(t, admin)
	f := fixture{t, admin, pgtest.UserPool(t, admin, name), name, once.WithSchema(name)}
	f.sql("CREATE TABLE pglock.effects (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)")
	f.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON pglock.effects TO " + schema.Quote(pgtest.RoleOf(f.pool)))
	return f
}

func (f fixture) client(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, f.pool, append([]pglock.Option{pglock.WithSchema(f.schema)}, opts...)...)
}

func (f fixture) sql(statement string, args ...any) {
	f.t.Helper()
	locktest.Exec(f.t, f.admin, schema.Render(statement, f.schema), args...)
}

// scanned returns the one value of a query.
func scanned[T any](f fixture, statement string, args ...any) T {
	f.t.Helper()
	return locktest.Scan[T](f.t, f.admin, schema.Render(statement, f.schema), args...)
}

// effects returns how often the effect of a key happened.
func (f fixture) effects(key string) int {
	f.t.Helper()
	return scanned[int](f, "SELECT count(*) FROM pglock.effects WHERE key = $1", key)
}

// effect inserts a row of effects and returns its number.
func (f fixture) effect(ctx context.Context, db fencing.DB, key string) (id int64, err error) {
	err = db.QueryRow(ctx, schema.Render("INSERT INTO pglock.effects (key) VALUES ($1) RETURNING id", f.schema), key).Scan(&id)
	return id, err
}

// begin returns a transaction that is rolled back on cleanup.
func (f fixture) begin(level pgx.TxIsoLevel) pgx.Tx {
	f.t.Helper()
	tx, err := f.pool.BeginTx(f.t.Context(), pgx.TxOptions{IsoLevel: level})
	ok(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (f fixture) commit(tx fencing.Tx) {
	f.t.Helper()
	ok(f.t, tx.Commit(f.t.Context()))
}

// call runs the effect of a key in tx, once.
func (f fixture) call(tx fencing.Tx, key string, opts ...once.TxOption) (int64, error) {
	return once.Tx(f.t.Context(), tx, key, []byte("request"), func(ctx context.Context) (int64, error) {
		return f.effect(ctx, tx, key)
	}, append([]once.TxOption{f.in}, opts...)...)
}

// usable fails the test unless tx still works.
func (f fixture) usable(tx fencing.Tx) {
	f.t.Helper()
	var one int
	if err := tx.QueryRow(f.t.Context(), "SELECT 1").Scan(&one); err != nil {
		f.t.Errorf("the transaction is not usable: %v", err)
	}
}

// waits waits until a session of the fixture's role waits for another transaction.
func (f fixture) waits() {
	f.t.Helper()
	pgtest.Eventually(f.t, "a call waits", func() bool {
		return scanned[bool](f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock')", pgtest.RoleOf(f.pool))
	})
}

// transactions are the kinds of transactions that Tx accepts.
var transactions = map[string]func(f fixture) fencing.Tx{
	"pgx": func(f fixture) fencing.Tx { return f.begin("") },
	"database/sql": func(f fixture) fencing.Tx {
		db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
		f.t.Cleanup(func() { _ = db.Close() })
		tx, err := db.BeginTx(f.t.Context(), &sql.TxOptions{})
		ok(f.t, err)
		f.t.Cleanup(func() { _ = tx.Rollback() })
		return sqltx.Wrap(tx)
	},
}

// wantErr fails the test unless err wraps all of want, and is nil without one.
func wantErr(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	if len(want) == 0 && err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want %v", what, err, w)
		}
	}
}

var ok = locktest.OK
