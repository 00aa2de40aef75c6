package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

var errStop = errors.New("stop")

// stopped is a transaction that cancels a context at one of its round trips: before it, or after it.
type stopped struct {
	pgx.Tx
	at     int
	after  bool
	cancel context.CancelCauseFunc
	trips  *int // so far
}

func (s stopped) around(trip func()) {
	*s.trips++
	if *s.trips == s.at && !s.after {
		s.cancel(errStop)
	}
	trip()
	if *s.trips == s.at && s.after {
		s.cancel(errStop)
	}
}

func (s stopped) Exec(ctx context.Context, q string, args ...any) (tag pgconn.CommandTag, err error) {
	s.around(func() { tag, err = s.Tx.Exec(ctx, q, args...) })
	return tag, err
}

func (s stopped) Query(ctx context.Context, q string, args ...any) (rows pgx.Rows, err error) {
	s.around(func() { rows, err = s.Tx.Query(ctx, q, args...) }) //nolint:sqlclosecheck // the caller closes them
	return rows, err
}

func (s stopped) QueryRow(ctx context.Context, q string, args ...any) (row pgx.Row) {
	s.around(func() { row = s.Tx.QueryRow(ctx, q, args...) })
	return row
}

func (s stopped) SendBatch(ctx context.Context, b *pgx.Batch) (results pgx.BatchResults) {
	s.around(func() { results = s.Tx.SendBatch(ctx, b) })
	return results
}

// TestI9_CancelAtEveryRoundTrip: a call that fails leaves the transaction unchanged. Before the first
// round trip is the savepoint's, which must not be canceled.
func TestI9_CancelAtEveryRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	canceled := 0
	for name, call := range everyCall(f) {
		for _, after := range []bool{false, true} {
			for at, last := 1, false; !last; at++ {
				ctx, cancel := context.WithCancelCause(t.Context())
				tx, trips := f.begin(), 0
				err := call(ctx, stopped{tx, at, after, cancel, &trips})
				last = trips < at
				cancel(nil)
				canceled += f.afterwards(fmt.Sprintf("%s, %d, after: %v", name, at, after), tx, err)
				if err := tx.Rollback(t.Context()); err != nil {
					t.Errorf("%s, %d: rollback: %v", name, at, err)
				}
			}
		}
	}
	if canceled < 20 {
		t.Errorf("only %d calls were stopped", canceled)
	}
	f.whole()
}

// afterwards checks the state after a call, and returns 1 if the call was canceled.
func (f fixture) afterwards(what string, tx advisory.Tx, err error) (stopped int) {
	t := f.t
	t.Helper()
	switch {
	case err == nil, errors.Is(err, rowlock.ErrMissing), errors.Is(err, rowlock.ErrShort):
	case errors.Is(err, context.Canceled) && errors.Is(err, errStop) && errors.Is(err, advisory.ErrNotAcquired) && !errors.Is(err, advisory.ErrTx):
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
	pgtest.Eventually(f.t, "no lock is left", func() bool {
		return value[int](f, f.pool, "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND pid <> pg_backend_pid()", f.stock.Name.Sanitize()) == 0
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
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		for name, call := range everyCall(f) {
			if name == "Claim" || name == "Lock, NoWait" {
				continue // they do not wait for rows
			}
			for _, lock := range []string{`SELECT FROM STOCK WHERE "the sku" = 'c' FOR UPDATE`, "LOCK TABLE STOCK"} {
				holder, tx := f.begin(), begin()
				f.in(holder, lock)
				ctx, cancel := context.WithCancelCause(t.Context())
				done := later(func() error { return call(ctx, tx) })
				f.waiting(1)
				cancel(errStop)
				err := locktest.Receive(t, done)
				_ = holder.Rollback(t.Context())
				if f.afterwards(name, tx, err) != 1 {
					t.Errorf("%s: not stopped: %v", name, err)
				}
				_ = tx.Rollback(t.Context())
			}
		}
		f.whole()
	})
}
