package pglock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// openDB returns a client of a *sql.DB with one connection, on the app's tables.
func (f app) openDB(opts ...pglock.Option) (*pglock.Client, *sql.DB) {
	f.t.Helper()
	return f.openOnDB(stdlib.OpenDB(*f.pool.Config().ConnConfig), opts...)
}

func (f app) openOnDB(db *sql.DB, opts ...pglock.Option) (*pglock.Client, *sql.DB) {
	f.t.Helper()
	db.SetMaxOpenConns(1)
	f.t.Cleanup(func() { _ = db.Close() })
	c, err := pglock.OpenDB(f.t.Context(), db, append(opts, pglock.WithSchema(f.schema))...)
	must(f.t, err)
	f.t.Cleanup(func() {
		check(f.t, c.Close(context.Background()))
	})
	return c, db
}

// TestOpenDBNeedsNoConnectionOfTheDB: the only connection of db is in a transaction while leases
// are acquired, waited for, renewed, guarded in that transaction, handed over and released. At the
// end db is closed.
func TestOpenDBNeedsNoConnectionOfTheDB(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	c, db := f.openDB()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	l := acquire(t, c, "n", pglock.WithRenewEvery(100*time.Millisecond))
	check(t, l.Guard(t.Context(), sqltx.Wrap(tx)))
	check(t, tx.Commit())
	if tx, err = db.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	renewed(t, l)
	next := make(chan error, 1)
	go func() {
		other, err := f.Acquire(t.Context(), "n")
		if err == nil {
			err = other.Release(t.Context())
		}
		next <- err
	}()
	pgtest.Eventually(t, "another client waits", func() bool {
		_, err := c.TryAcquire(t.Context(), "n", pglock.WithBarging())
		return errors.Is(err, pglock.ErrNotAcquired)
	})
	check(t, errors.Join(l.Release(t.Context()), <-next))
	fails(t, "DoTx uses the connection of db", c.DoTx(t.Context(), "n", func(context.Context, pgx.Tx) error { return nil }, advisory.WithPoolWait(50*time.Millisecond)), errs.ErrPoolExhausted)
	check(t, errors.Join(tx.Rollback(), db.Close()))
	if err := c.DoTx(t.Context(), "n", func(context.Context, pgx.Tx) error { return nil }); err == nil || errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("DoTx on a closed database: %v", err)
	}
	check(t, c.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return nil }))
	f.free("n")
}

// TestOpenDBRefusesAStaleHolder: the guard works in a transaction of db, and so does the lock of
// DoTx by hand. The control writes without the guard.
func TestOpenDBRefusesAStaleHolder(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	c, db := f.openDB()
	table := schema.Quote(f.schema) + ".written"
	if _, err := f.pool.Exec(t.Context(), "CREATE TABLE "+table+" AS SELECT 0 AS n"); err != nil {
		t.Fatal(err)
	}
	l := acquire(t, c, "n")
	f.steal()
	write := func(guard bool) error {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := advisory.Lock(t.Context(), sqltx.Wrap(tx), c.Key("n")); err != nil {
			return err
		}
		if guard {
			if err := l.Guard(t.Context(), sqltx.Wrap(tx)); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1"); err != nil {
			return err
		}
		return tx.Commit()
	}
	written := func() (n int) {
		t.Helper()
		must(t, f.pool.QueryRow(t.Context(), "SELECT n FROM "+table).Scan(&n))
		return n
	}
	if err := write(true); !errors.Is(err, pglock.ErrStale) || written() != 0 {
		t.Errorf("a stale holder: %v, n is %d", err, written())
	}
	if err := write(false); err != nil || written() != 1 {
		t.Errorf("control: %v, n is %d", err, written())
	}
	fails(t, "release", l.Release(t.Context()), pglock.ErrLost)
}

// TestOpenDBTakesTheConfigurationOfAConnection: what OptionBeforeConnect has set is in it.
func TestOpenDBTakesTheConfigurationOfAConnection(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	good := f.pool.Config().ConnConfig
	bad := good.Copy()
	bad.Port, bad.Fallbacks = 1, nil
	_, db := f.openOnDB(stdlib.OpenDB(*bad, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error {
		c.Port, c.RuntimeParams = good.Port, map[string]string{"application_name": t.Name()}
		return nil
	})))
	var n int
	err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", t.Name()+" (pglock)").Scan(&n)
	if err != nil || n != 1 || db.Stats().InUse != 0 {
		t.Errorf("%d connections of the client, %d of db in use: %v", n, db.Stats().InUse, err)
	}
}

// foreign is a driver that is not pgx's.
type foreign struct{}

func (foreign) Connect(context.Context) (driver.Conn, error) { return foreign{}, nil }
func (foreign) Driver() driver.Driver                        { return nil }
func (foreign) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (foreign) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (foreign) Close() error                                 { return nil }

func TestOpenDBErrors(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	connect := func(change func(c *pgx.ConnConfig)) *sql.DB {
		config := f.pool.Config().ConnConfig
		change(config)
		db := stdlib.OpenDB(*config)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	unchanged := func(*pgx.ConnConfig) {}
	other := sql.OpenDB(foreign{})
	defer other.Close()
	closed := connect(unchanged)
	_ = closed.Close()
	busy := connect(unchanged)
	busy.SetMaxOpenConns(1)
	holder, err := busy.Conn(t.Context())
	must(t, err)
	defer holder.Close()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		db   *sql.DB
		opts []pglock.Option
		want []error
	}{
		"another driver": {t.Context(), other, nil, []error{errs.ErrDriver}},
		"no database":    {t.Context(), nil, nil, []error{pglock.ErrInvalidOption}},
		"bad option":     {t.Context(), busy, []pglock.Option{pglock.WithTTL(-1)}, []error{pglock.ErrInvalidOption}},
		"ended context":  {canceled, connect(unchanged), nil, []error{pglock.ErrUnavailable, context.Canceled}},
		"no server":      {t.Context(), connect(func(c *pgx.ConnConfig) { c.Port, c.Fallbacks = 1, nil }), nil, []error{pglock.ErrUnavailable}},
		"no such role":   {t.Context(), connect(func(c *pgx.ConnConfig) { c.User = "nobody at all" }), nil, []error{pglock.ErrLogin}},
		"no tables":      {t.Context(), connect(unchanged), []pglock.Option{pglock.WithSchema("nowhere")}, []error{schema.ErrMissing}},
		"busy":           {t.Context(), busy, nil, []error{errs.ErrPoolExhausted}}, // takes 10 s
	} {
		c, err := pglock.OpenDB(tc.ctx, tc.db, tc.opts...)
		for _, want := range tc.want {
			if c != nil || !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if c, err := pglock.OpenDB(t.Context(), closed); c != nil || err == nil || errors.Is(err, pglock.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
	check(t, holder.PingContext(t.Context()))
}
