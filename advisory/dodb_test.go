package advisory_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// wrapping is pgx's driver behind another one, as for tracing, that hides the type of its
// connections and does not check them before they are used again.
type wrapping struct{ driver.Connector }

func (w wrapping) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	return wrapped{c}, err
}

type wrapped struct{ driver.Conn }

func (w wrapped) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return w.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

func (w wrapped) CheckNamedValue(v *driver.NamedValue) error {
	return w.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

// alien is a driver that is not pgx's, and accepts any argument.
type alien struct{}

func (alien) Connect(context.Context) (driver.Conn, error) { return alien{}, nil }
func (alien) Driver() driver.Driver                        { return nil }
func (alien) Prepare(string) (driver.Stmt, error)          { return alien{}, nil }
func (alien) Close() error                                 { return nil }
func (alien) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (alien) NumInput() int                                { return -1 }
func (alien) Exec([]driver.Value) (driver.Result, error)   { return driver.RowsAffected(0), nil }
func (alien) Query([]driver.Value) (driver.Rows, error)    { return nil, errors.ErrUnsupported }
func (alien) CheckNamedValue(*driver.NamedValue) error     { return nil }

// bothDrivers runs a test with a *sql.DB on pgx's driver, and with one on a driver that wraps it.
func bothDrivers(t *testing.T, conns int, test func(t *testing.T, l ledger, db *sql.DB)) {
	t.Helper()
	for name, wrap := range map[string]func(driver.Connector) driver.Connector{
		"pgx":     func(c driver.Connector) driver.Connector { return c },
		"wrapped": func(c driver.Connector) driver.Connector { return wrapping{c} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			db := sql.OpenDB(wrap(stdlib.GetConnector(*l.pool.Config().ConnConfig)))
			db.SetMaxOpenConns(conns)
			t.Cleanup(func() { _ = db.Close() })
			test(t, l, db)
			if s := db.Stats(); s.InUse != 0 {
				t.Errorf("%d connections are in use after the test", s.InUse)
			}
		})
	}
}

// TestDoDBExcludes calls of DoDB and of Do. The control runs the same transactions without the lock,
// and each has read before one writes.
func TestDoDBExcludes(t *testing.T) {
	t.Parallel()
	bothDrivers(t, 3, func(t *testing.T, l ledger, db *sql.DB) {
		t.Helper()
		const workers, rounds = 6, 10
		key := advisory.NewKey("do", t.Name())
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				for range rounds {
					var err error
					if i%2 == 0 {
						err = advisory.Do(t.Context(), l.pool, key, l.increment)
					} else {
						err = advisory.DoDB(t.Context(), db, key, l.increment)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if n := l.n(); n != workers*rounds {
			t.Errorf("n is %d", n)
		}
		var read sync.WaitGroup
		read.Add(2)
		for range 2 {
			all.Go(func() {
				met := sync.OnceFunc(func() { read.Done(); read.Wait() })
				defer met()
				err := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) error {
					n := count(t, tx, "SELECT n FROM "+l.table)
					met()
					_, err := tx.Exec(t.Context(), "UPDATE "+l.table+" SET n = $1", n+1)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := l.n(); n != workers*rounds+1 {
			t.Errorf("control: n is %d: two transactions without the lock should lose an update", n)
		}
	})
}

func TestDoDBEndsItsTransaction(t *testing.T) {
	t.Parallel()
	bothDrivers(t, 1, func(t *testing.T, l ledger, db *sql.DB) {
		t.Helper()
		key, own := advisory.NewKey("do", t.Name()), errors.New("the function's")
		err := advisory.DoDB(t.Context(), db, key, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(l.increment(ctx, tx), own)
		})
		if !errors.Is(err, own) || l.n() != 0 {
			t.Errorf("%v, n is %d", err, l.n())
		}
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("panic %v", p)
				}
			}()
			_ = advisory.DoDB(t.Context(), db, key, func(context.Context, pgx.Tx) error { panic("boom") })
		}()
		// pgx closes the connection of a statement whose context ends: db must not use it again.
		err = advisory.DoDB(soon(t, 100*time.Millisecond), db, key, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline: %v", err)
		}
		if err := advisory.DoDB(t.Context(), db, key, l.increment, advisory.WithIsolation(pgx.Serializable)); err != nil || l.n() != 1 {
			t.Errorf("afterwards: %v, n is %d", err, l.n())
		}
		var status string
		if err := db.QueryRowContext(t.Context(), "SELECT current_setting('transaction_isolation')").Scan(&status); err != nil || status != "read committed" {
			t.Errorf("the connection of db: %s, %v", status, err)
		}
		if n := locksOn(t, l.pool, key); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

func TestDoDBWaitsForAConnection(t *testing.T) {
	t.Parallel()
	bothDrivers(t, 1, func(t *testing.T, l ledger, db *sql.DB) {
		t.Helper()
		key := advisory.NewKey("do", t.Name())
		err := advisory.DoDB(t.Context(), db, key, func(ctx context.Context, _ pgx.Tx) error {
			err := advisory.DoDB(ctx, db, advisory.NewKey("other", t.Name()), noWork, advisory.WithPoolWait(50*time.Millisecond))
			if !isAll(err, advisory.ErrPoolExhausted, advisory.ErrNotAcquired) {
				t.Errorf("no connection is free: %v", err)
			}
			err = advisory.DoDB(soon(t, 50*time.Millisecond), db, advisory.NewKey("other", t.Name()), noWork)
			if !isAll(err, context.DeadlineExceeded, advisory.ErrNotAcquired) || errors.Is(err, advisory.ErrPoolExhausted) {
				t.Errorf("deadline: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		tx := holder(t, l.pool, key)
		err = advisory.DoDB(t.Context(), db, key, noWork, advisory.WithTimeout(30*time.Millisecond))
		if !isAll(err, advisory.ErrTimeout, advisory.ErrNotAcquired) {
			t.Errorf("busy: %v", err)
		}
		_ = tx.Rollback(t.Context())
	})
}

func TestDoDBRefusesOtherDrivers(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(alien{})
	key := advisory.NewKey("do", t.Name())
	if err := advisory.DoDB(t.Context(), db, key, noWork); !errors.Is(err, advisory.ErrDriver) {
		t.Errorf("another driver: %v", err)
	}
	if s := db.Stats(); s.InUse != 0 {
		t.Errorf("%d connections are in use", s.InUse)
	}
	if err := advisory.DoDB(t.Context(), nil, key, noWork); !errors.Is(err, advisory.ErrInvalidOption) {
		t.Errorf("no database: %v", err)
	}
	closed := stdlib.OpenDB(*pgtest.Pool(t, func(*pgxpool.Config) {}).Config().ConnConfig)
	_ = closed.Close()
	if err := errors.Join(db.Close(), advisory.DoDB(t.Context(), closed, key, noWork)); err == nil || errors.Is(err, advisory.ErrNotAcquired) {
		t.Errorf("a closed database: %v", err)
	}
}
