package rowlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// hooked is a pgx.Tx that calls before with each statement.
type hooked struct {
	pgx.Tx
	before func(ctx context.Context, sql string)
}

func (h hooked) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	h.before(ctx, sql)
	return h.Tx.Exec(ctx, sql, args...)
}

func (h hooked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	h.before(ctx, sql)
	return h.Tx.Query(ctx, sql, args...)
}

// opaque is a transaction that tells nothing of its connection: the server's lock_timeout is all that bounds it.
type opaque struct{ rowlock.Tx }

// TestTimeoutIsForAllAttempts: the row was inserted again while it was waited for, and is locked when it is looked for
// the second time. What was waited before counts.
func TestTimeoutIsForAllAttempts(t *testing.T) {
	t.Parallel()
	for name, dress := range map[string]func(hooked) rowlock.Tx{
		"pgx":    func(tx hooked) rowlock.Tx { return tx },
		"opaque": func(tx hooked) rowlock.Tx { return opaque{tx} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			first, next, tx := f.begin(), f.begin(), f.begin()
			f.in(first, `DELETE FROM STOCK WHERE "the sku" = 'b'`)
			f.in(first, `INSERT INTO STOCK VALUES ('b', 3)`)
			looks, begun := 0, time.Now()
			const timeout, firstWait = 2500 * time.Millisecond, 2 * time.Second
			between := dress(hooked{tx, func(_ context.Context, sql string) {
				if strings.Contains(sql, "array_positions") { // the two attempts
					f.in(next, `SELECT FROM STOCK WHERE "the sku" = 'b' FOR UPDATE`)
					looks++
				}
			}})
			done := later(func() error {
				return second(rowlock.ForUpdate[item](t.Context(), between, f.stock.Table, []string{"b"}, rowlock.WithTimeout(timeout)))
			})
			f.waiting(1)
			<-time.After(time.Until(begun.Add(firstWait)))
			if err := first.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, rowlock.ErrTimeout) || looks != 1 {
				t.Errorf("%d looks, %v", looks, err)
			}
			if took := time.Since(begun); took < timeout-10*time.Millisecond || took > timeout+1500*time.Millisecond { // 4.5 s if counted anew
				t.Errorf("it took %v", took)
			}
			_ = next.Rollback(t.Context())
			f.usable(tx, "0")
		})
	}
}

// TestI9_CancelLeavesTheSavepointAlone: a request to cancel that hit it would abort the transaction.
func TestI9_CancelLeavesTheSavepointAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	ctx, cancel := context.WithCancelCause(t.Context())
	slow := hooked{tx, func(ctx context.Context, sql string) {
		if strings.HasPrefix(sql, "SAVEPOINT") {
			cancel(errStop)
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.3)"); err != nil {
				t.Errorf("the server was asked to cancel it: %v", err)
			}
		}
	}}
	err := second(rowlock.Reserve(ctx, slow, f.stock, []line{{"a", 1}}))
	if !errors.Is(err, errStop) || !errors.Is(err, rowlock.ErrNotAcquired) {
		t.Errorf("%v", err)
	}
	f.usable(tx, "0")
}

// tired is a transaction whose first way back is cancelled, as by a request that a pooler delivers late.
type tired struct {
	pgx.Tx
	ways int
}

func (tx *tired) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "ROLLBACK TO") {
		if tx.ways++; tx.ways == 1 {
			return pgconn.CommandTag{}, &pgconn.PgError{Code: "57014"}
		}
	}
	return tx.Tx.Exec(ctx, sql, args...)
}

func TestI9_CancelledWayBackIsTakenAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := &tired{Tx: f.begin()}
	if err := second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 99}})); !errors.Is(err, rowlock.ErrShort) || errors.Is(err, rowlock.ErrTx) || tx.ways != 2 {
		t.Errorf("%d ways back, %v", tx.ways, err)
	}
	f.usable(tx.Tx, "0")
}

// TestP34_SuccessLeavesTheSettings: nothing of the time-out stays when the rows are locked.
func TestP34_SuccessLeavesTheSettings(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		for _, own := range []string{"0", "250ms", "17s", "1h"} {
			tx := begin()
			f.in(tx, "SELECT set_config('lock_timeout', $1, true)", own)
			for _, d := range []time.Duration{time.Minute, 100 * 365 * 24 * time.Hour} {
				if err := second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a"}, rowlock.WithTimeout(d))); err != nil {
					t.Errorf("%v: %v", d, err)
				}
			}
			if err := second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}}, rowlock.NoWait())); err != nil {
				t.Error(err)
			}
			if got := value[string](f, tx, "SHOW lock_timeout"); got != own {
				t.Errorf("lock_timeout is %s, it was %s", got, own)
			}
			_ = tx.Rollback(t.Context())
		}
	})
}
