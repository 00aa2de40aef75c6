package rowlock_test

import (
	"context"
	"errors"
	"math"
	"reflect"
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

// opaque hides the connection of a transaction: only the server's lock_timeout bounds its waits.
type opaque struct{ rowlock.Tx }

// TestTimeoutIsForAllAttempts: the row is inserted again during the wait, and another transaction
// holds it at the second attempt. The time of the first wait counts.
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
			finds, begun := 0, time.Now()
			const timeout, firstWait = 2500 * time.Millisecond, 2 * time.Second
			between := dress(hooked{tx, func(_ context.Context, sql string) {
				if strings.HasPrefix(sql, "SELECT array_positions") { // between the two attempts
					f.in(next, `SELECT FROM STOCK WHERE "the sku" = 'b' FOR UPDATE`)
					finds++
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
			if err := <-done; !errors.Is(err, rowlock.ErrTimeout) || finds != 1 {
				t.Errorf("%d finds, %v", finds, err)
			}
			// 4.5 s if the second attempt had a timeout of its own.
			if took := time.Since(begun); took < timeout-10*time.Millisecond || took > timeout+1500*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			_ = next.Rollback(t.Context())
			f.usable(tx, "0")
		})
	}
}

// TestI9_CancelLeavesTheSavepointAlone: a request to cancel that hits SAVEPOINT would abort the
// transaction.
func TestI9_CancelLeavesTheSavepointAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	ctx, cancel := context.WithCancelCause(t.Context())
	slow := hooked{tx, func(ctx context.Context, sql string) {
		if strings.HasPrefix(sql, "SAVEPOINT") {
			cancel(errStop)
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.3)"); err != nil {
				t.Errorf("the server was asked to cancel the savepoint: %v", err)
			}
		}
	}}
	err := second(rowlock.Reserve(ctx, slow, f.stock, []line{{"a", 1}}))
	if !errors.Is(err, errStop) || !errors.Is(err, rowlock.ErrNotAcquired) {
		t.Errorf("%v", err)
	}
	f.usable(tx, "0")
}

// canceledOnce is a transaction whose first rollback to the savepoint is canceled, as by a request
// that a pooler delivers late.
type canceledOnce struct {
	pgx.Tx
	rollbacks int
}

func (tx *canceledOnce) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.HasPrefix(sql, "ROLLBACK TO") {
		if tx.rollbacks++; tx.rollbacks == 1 {
			return pgconn.CommandTag{}, &pgconn.PgError{Code: "57014"}
		}
	}
	return tx.Tx.Exec(ctx, sql, args...)
}

func TestI9_CanceledRollbackIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := &canceledOnce{Tx: f.begin()}
	if err := second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 99}})); !errors.Is(err, rowlock.ErrShort) || errors.Is(err, rowlock.ErrTx) || tx.rollbacks != 2 {
		t.Errorf("%d rollbacks, %v", tx.rollbacks, err)
	}
	f.usable(tx.Tx, "0")
}

// TestP34_SuccessLeavesTheSettings: a call that succeeds restores lock_timeout.
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

// TestLongestTimeout: the longest time.Duration does not overflow.
func TestLongestTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := rowlock.ForUpdate[item](t.Context(), f.begin(), f.stock.Table, []string{"a"}, rowlock.WithTimeout(time.Duration(math.MaxInt64))); err != nil {
		t.Error(err)
	}
}

// TestRowThatMovesToAnotherPartitionIsFound: PostgreSQL reports it as 40001 at every isolation
// level.
func TestRowThatMovesToAnotherPartitionIsFound(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql("DROP TABLE STOCK")
		f.sql(`CREATE TABLE STOCK ("the sku" text, "qty""left" integer, warehouse integer) PARTITION BY LIST (warehouse)`)
		for _, house := range []string{"1", "2"} {
			f.sql("CREATE TABLE " + f.stock.Name[:1].Sanitize() + ".house" + house + " PARTITION OF STOCK FOR VALUES IN (" + house + ")")
		}
		f.sql(`INSERT INTO STOCK VALUES ('a', 10, 1), ('b', 10, 1)`)
		for to, call := range map[int]func(tx rowlock.Tx) error{
			2: func(tx rowlock.Tx) error {
				rows, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a", "b"})
				if skus(values(rows)) != "ab" {
					t.Errorf("locked: %v", rows)
				}
				return err
			},
			1: func(tx rowlock.Tx) error {
				left, err := rowlock.Reserve(t.Context(), tx, f.stock, rowlock.Lines(rowlock.Take("b", 2), rowlock.Take("a", 3)))
				if got := values(left); !reflect.DeepEqual(got, []rowlock.Decimal{"8", "7"}) {
					t.Errorf("left: %v", got)
				}
				return err
			},
		} {
			f.sql("UPDATE STOCK SET warehouse = $1", 3-to)
			mover := f.begin()
			f.in(mover, `UPDATE STOCK SET warehouse = $1 WHERE "the sku" = 'a'`, to)
			tx := begin()
			result := later(func() error { return call(tx) })
			f.waiting(1)
			if err := mover.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-result; err != nil {
				t.Errorf("to %d: %v", to, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
