package rowlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

var errStop = errors.New("stop")

// stopper cancels a context at one of the transaction's round trips: before it, during it, or after
// it.
type stopper struct {
	at     int
	when   string
	cancel context.CancelCauseFunc
	n      int // round trips so far
}

func (s *stopper) around(trip func()) {
	s.n++
	hit := s.n == s.at
	if hit && s.when == "before" {
		s.cancel(errStop)
	}
	if hit && s.when == "during" {
		go s.cancel(errStop)
	}
	trip()
	if hit && s.when == "after" {
		s.cancel(errStop)
	}
}

// stoppedPgx is a pgx.Tx with a stopper.
type stoppedPgx struct {
	pgx.Tx
	*stopper
}

func (s stoppedPgx) Exec(ctx context.Context, q string, args ...any) (tag pgconn.CommandTag, err error) {
	s.around(func() { tag, err = s.Tx.Exec(ctx, q, args...) })
	return tag, err
}

func (s stoppedPgx) Query(ctx context.Context, q string, args ...any) (rows pgx.Rows, err error) {
	s.around(func() { rows, err = s.Tx.Query(ctx, q, args...) }) //nolint:sqlclosecheck // the caller closes them
	return rows, err
}

func (s stoppedPgx) QueryRow(ctx context.Context, q string, args ...any) (row pgx.Row) {
	s.around(func() { row = s.Tx.QueryRow(ctx, q, args...) })
	return row
}

func (s stoppedPgx) SendBatch(ctx context.Context, b *pgx.Batch) (results pgx.BatchResults) {
	s.around(func() { results = s.Tx.SendBatch(ctx, b) })
	return results
}

// stoppedSQL is a *sqltx.Tx with a stopper.
type stoppedSQL struct {
	*sqltx.Tx
	*stopper
}

func (s stoppedSQL) Exec(ctx context.Context, q string, args ...any) (tag pgconn.CommandTag, err error) {
	s.around(func() { tag, err = s.Tx.Exec(ctx, q, args...) })
	return tag, err
}

func (s stoppedSQL) Query(ctx context.Context, q string, args ...any) (rows pgx.Rows, err error) {
	s.around(func() { rows, err = s.Tx.Query(ctx, q, args...) }) //nolint:sqlclosecheck // the caller closes them
	return rows, err
}

func (s stoppedSQL) QueryRow(ctx context.Context, q string, args ...any) (row pgx.Row) {
	s.around(func() { row = s.Tx.QueryRow(ctx, q, args...) })
	return row
}

// TestI9_CancelAtEveryRoundTrip: a call that fails leaves the transaction unchanged.
func TestI9_CancelAtEveryRoundTrip(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		stopped := 0
		for name, call := range everyCall(f) {
			for _, when := range []string{"before", "during", "after"} {
				for at, last := 1, false; !last; at++ {
					ctx, cancel := context.WithCancelCause(t.Context())
					s := &stopper{at: at, when: when, cancel: cancel}
					tx := begin()
					pid := value[int](f, tx, "SELECT pg_backend_pid()")
					err := call(ctx, s.stop(tx))
					last = s.n < at
					cancel(nil)
					stopped += f.afterwards(t, fmt.Sprintf("%s, %s %d", name, when, at), tx, err)
					if again := value[int](f, tx, "SELECT pg_backend_pid()"); again != pid {
						t.Errorf("%s, %s %d: another backend", name, when, at)
					}
					if err := tx.Rollback(t.Context()); err != nil {
						t.Errorf("%s, %s %d: rollback: %v", name, when, at, err)
					}
				}
			}
		}
		if stopped < 40 {
			t.Errorf("only %d calls were stopped", stopped)
		}
		f.whole()
	})
}

func (s *stopper) stop(tx rowlock.Tx) rowlock.Tx {
	if p, ok := tx.(pgx.Tx); ok {
		return stoppedPgx{p, s}
	}
	return stoppedSQL{tx.(*sqltx.Tx), s}
}

// afterwards checks the state after a call, and returns 1 if the call was canceled.
func (f fixture) afterwards(t *testing.T, what string, tx rowlock.Tx, err error) (stopped int) {
	t.Helper()
	switch {
	case err == nil, errors.Is(err, rowlock.ErrMissing), errors.Is(err, rowlock.ErrShort):
	case errors.Is(err, context.Canceled) && errors.Is(err, errStop) && errors.Is(err, rowlock.ErrNotAcquired) && !errors.Is(err, rowlock.ErrTx):
		stopped = 1
	default:
		t.Errorf("%s: %v", what, err)
	}
	if free := f.free(); err != nil && free != "abcde" {
		t.Errorf("%s: only %q are free after %v", what, free, err)
	}
	if setting := value[string](f, tx, "SHOW lock_timeout"); setting != "0" {
		t.Errorf("%s: lock_timeout is %s", what, setting)
	}
	return stopped
}

// whole checks that pg_locks is empty, and that both pools work.
func (f fixture) whole() {
	f.t.Helper()
	pgtest.Eventually(f.t, 5*time.Second, "no lock is left", func() bool {
		return value[int](f, f.pool, "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND pid <> pg_backend_pid()", f.stock.String()) == 0
	})
	if n := f.pool.Stat().AcquiredConns(); n != 0 {
		f.t.Errorf("%d connections are out", n)
	}
	if n := f.db.Stats().InUse; n != 0 {
		f.t.Errorf("%d connections of database/sql are out", n)
	}
}

// TestI9_CancelWhileWaiting: the statement is canceled, and the transaction remains usable.
func TestI9_CancelWhileWaiting(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		for name, call := range everyCall(f) {
			if name == "Claim" || name == "ForUpdate, NoWait" {
				continue // they do not wait for rows
			}
			for _, lock := range []string{`SELECT FROM STOCK WHERE "the sku" = 'c' FOR UPDATE`, "LOCK TABLE STOCK"} {
				holder, tx := f.begin(), begin()
				f.in(holder, lock)
				ctx, cancel := context.WithCancelCause(t.Context())
				done := later(func() error { return call(ctx, tx) })
				f.waiting(1)
				begun := time.Now()
				cancel(errStop)
				err := <-done
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("%s: it took %v", name, took)
				}
				_ = holder.Rollback(t.Context())
				if f.afterwards(t, name, tx, err) != 1 {
					t.Errorf("%s: not stopped: %v", name, err)
				}
				_ = tx.Rollback(t.Context())
			}
		}
		f.whole()
	})
}

// TestI9_CancelAtAnyTime cancels after each of many delays, also between the steps of the tests
// above.
func TestI9_CancelAtAnyTime(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		for name, call := range everyCall(f) {
			for d := time.Duration(0); d < 1500*time.Microsecond; d += 60 * time.Microsecond {
				tx := begin()
				f.in(tx, "SELECT 1")
				ctx, cancel := context.WithCancelCause(t.Context())
				timer := time.AfterFunc(d, func() { cancel(errStop) })
				err := call(ctx, tx)
				timer.Stop()
				cancel(nil)
				f.afterwards(t, name+" after "+d.String(), tx, err)
				_ = tx.Rollback(t.Context())
			}
		}
		f.whole()
	})
}

// TestI9_CancelWhilePreparing cancels each call while the server parses its first statement
// inside the savepoint. A lock on the catalog of functions and on the table keeps the server
// there. The transaction remains usable.
func TestI9_CancelWhilePreparing(t *testing.T) {
	t.Parallel()
	watch := pgtest.Pool(t)
	other, err := pgx.ParseConfig(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(c *pgxpool.Config) { c.ConnConfig.Database = other.Database })
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	defer db.Close()
	// A server process for each transaction, which has not cached the function.
	db.SetMaxIdleConns(-1)
	ways := map[string]func() rowlock.Tx{
		"pgx": func() rowlock.Tx { f.pool.Reset(); return f.begin() },
		"database/sql": func() rowlock.Tx {
			tx, err := db.BeginTx(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			return sqltx.Wrap(tx)
		},
	}
	for name, call := range everyCall(f) {
		for way, begin := range ways {
			blocker, tx := f.begin(), begin()
			f.in(blocker, "LOCK TABLE pg_catalog.pg_proc, STOCK IN ACCESS EXCLUSIVE MODE")
			ctx, cancel := context.WithCancelCause(t.Context())
			done := later(func() error { return call(ctx, tx) })
			pgtest.Eventually(t, 10*time.Second, name+", "+way+": the server is parsing", func() bool {
				return value[bool](f, watch, `SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE datname = $1 AND wait_event_type = 'Lock' AND wait_event = 'relation')`, other.Database)
			})
			cancel(errStop)
			err := <-done
			if e := blocker.Rollback(t.Context()); e != nil {
				t.Fatal(e)
			}
			if f.afterwards(t, name+", "+way, tx, err) != 1 {
				t.Errorf("%s, %s: not stopped: %v", name, way, err)
			}
			if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s, %s: %v", name, way, err)
			}
		}
	}
}
