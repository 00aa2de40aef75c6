package advisory_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/advisory"
)

// TestDoDB: it excludes Do, ends its transaction, waits for a connection as Do does, and returns the
// only connection of the *sql.DB usable.
func TestDoDB(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	db := stdlib.OpenDB(*l.pool.Config().ConnConfig)
	db.SetMaxOpenConns(1)
	defer db.Close()
	key, other, own := advisory.NewKey("do", t.Name()), advisory.NewKey("other", t.Name()), errors.New("the function's")
	err := advisory.DoDB(t.Context(), db, key, func(ctx context.Context, tx pgx.Tx) error {
		for what, tc := range map[string]struct {
			err  error
			want []error
		}{
			"busy":               {advisory.Do(ctx, l.pool, key, noWork, advisory.WithTimeout(30*time.Millisecond)), []error{advisory.ErrTimeout}},
			"no connection":      {advisory.DoDB(ctx, db, other, noWork, advisory.WithPoolWait(50*time.Millisecond)), []error{advisory.ErrPoolExhausted}},
			"until the deadline": {advisory.DoDB(soon(t, 50*time.Millisecond), db, other, noWork), []error{context.DeadlineExceeded}},
		} {
			if !isAll(tc.err, append(tc.want, advisory.ErrNotAcquired)...) {
				t.Errorf("%s: %v", what, tc.err)
			}
		}
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
	var level string
	if err := db.QueryRowContext(t.Context(), "SELECT current_setting('transaction_isolation')").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("the connection of db: %s, %v", level, err)
	}
	if n, s := locksOn(t, l.pool, key), db.Stats(); n != 0 || s.InUse != 0 {
		t.Errorf("%d locks are left, %d connections are in use", n, s.InUse)
	}
	if err := errors.Join(db.Close(), advisory.DoDB(t.Context(), db, key, noWork)); err == nil || errors.Is(err, advisory.ErrNotAcquired) {
		t.Errorf("a closed database: %v", err)
	}
	var none *sql.DB
	if err := advisory.DoDB(t.Context(), none, key, noWork); !errors.Is(err, advisory.ErrInvalidOption) {
		t.Errorf("no database: %v", err)
	}
}
