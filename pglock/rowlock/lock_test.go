package rowlock_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

func TestForUpdateReturnsRowsInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		tx := begin()
		f.in(tx, `UPDATE STOCK SET "qty""left" = 7 WHERE "the sku" = 'c'`)
		rows, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"d", "a", "c"})
		if err != nil || !reflect.DeepEqual(values(rows), []item{{"a", 10}, {"c", 7}, {"d", 10}}) {
			t.Fatalf("%v %v", rows, err)
		}
		if free := f.free(); free != "be" {
			t.Errorf("free: %q", free)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if free := f.free(); free != "abcde" {
			t.Errorf("free after the commit: %q", free)
		}
	})
}

// TestStrengths: the conflicts are those of PostgreSQL's table 13.3.
func TestStrengths(t *testing.T) {
	t.Parallel()
	type locker func(context.Context, rowlock.Tx, rowlock.Table, []string, ...rowlock.LockOption) (rowlock.ByKey[string, item], error)
	lockers := []locker{rowlock.ForKeyShare[item, string], rowlock.ForShare[item, string], rowlock.ForNoKeyUpdate[item, string], rowlock.ForUpdate[item, string]}
	conflict := [4][4]bool{{3: true}, {2: true, 3: true}, {1: true, 2: true, 3: true}, {true, true, true, true}}
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		for i, hold := range lockers {
			holder := begin()
			if _, err := hold(t.Context(), holder, f.stock.Table, []string{"a"}); err != nil {
				t.Fatal(err)
			}
			for j, try := range lockers {
				other := begin()
				_, err := try(t.Context(), other, f.stock.Table, []string{"a"}, rowlock.NoWait())
				if refused := errors.Is(err, rowlock.ErrNotAcquired); refused != conflict[i][j] || err != nil && !refused {
					t.Errorf("%d behind %d: %v", j, i, err)
				}
				_ = other.Rollback(t.Context())
			}
			_ = holder.Rollback(t.Context())
		}
	})
}

func TestMissingKeys(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		tx := begin()
		rows, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"x", "b", "a", "y"})
		var missing *rowlock.MissingError
		if rows.Len() > 0 || !errors.As(err, &missing) || !errors.Is(err, rowlock.ErrMissing) || !reflect.DeepEqual(missing.Keys, []any{"x", "y"}) {
			t.Errorf("%v %v", rows, err)
		}
		f.usable(tx, "0")
		tx = begin()
		rows, err = rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"x", "b", "a"}, rowlock.AllowMissing())
		if err != nil || skus(values(rows)) != "ab" || f.free() != "cde" {
			t.Errorf("allowed: %v %v", rows, err)
		}
		rows, err = rowlock.ForUpdate[item](t.Context(), begin(), f.stock.Table, []string{"b", "c", "x"}, rowlock.SkipLocked())
		if err != nil || skus(values(rows)) != "c" {
			t.Errorf("with SkipLocked: %v %v", rows, err)
		}
		rows, err = rowlock.ForUpdate[item](t.Context(), begin(), f.stock.Table, []string{})
		if err != nil || rows.Len() > 0 {
			t.Errorf("without keys: %v %v", rows, err)
		}
		rows, err = rowlock.ForUpdate[item](t.Context(), begin(), f.stock.Table, []string{"d"}, rowlock.Where("warehouse", rowlock.Equal, 2))
		if !errors.Is(err, rowlock.ErrMissing) {
			t.Errorf("in another warehouse: %v %v", rows, err)
		}
	})
}

func TestNoWaitLeavesNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		holder := f.begin()
		f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'c' FOR UPDATE`)
		tx := begin()
		f.in(tx, "SET LOCAL lock_timeout = '17s'")
		_, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"d", "c", "b"}, rowlock.NoWait())
		var refused *rowlock.NotAcquiredError
		if !errors.As(err, &refused) || !errors.Is(err, rowlock.ErrNotAcquired) || refused.Cause != nil || refused.Table != f.stock.String() {
			t.Errorf("%v", err)
		}
		_ = holder.Rollback(t.Context())
		f.usable(tx, "17s")

		tx = begin()
		ddl := f.begin()
		f.in(ddl, "LOCK TABLE STOCK")
		if _, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a"}, rowlock.NoWait()); !errors.Is(err, rowlock.ErrNotAcquired) {
			t.Errorf("a table that another transaction has locked: %v", err)
		}
		_ = ddl.Rollback(t.Context())
		f.usable(tx, "0")
	})
}

// TestTimeoutIsForAllTogether: the timeout passes although each single wait is shorter.
func TestTimeoutIsForAllTogether(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		first, second := f.begin(), f.begin()
		f.in(first, `SELECT FROM STOCK WHERE "the sku" = 'a' FOR UPDATE`)
		f.in(second, `SELECT FROM STOCK WHERE "the sku" = 'b' FOR UPDATE`)
		tx := begin()
		f.in(tx, "SET LOCAL lock_timeout = '1min'")
		begun := time.Now()
		done := later(func() error {
			_, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"b", "a"}, rowlock.WithTimeout(1600*time.Millisecond))
			return err
		})
		f.waiting(1)
		<-time.After(time.Until(begun.Add(time.Second)))
		_ = first.Rollback(t.Context())
		err := <-done
		// 2600 if each wait had a timeout of its own.
		if took := time.Since(begun); took < 1590*time.Millisecond || took > 2500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if !errors.Is(err, rowlock.ErrTimeout) || !errors.Is(err, rowlock.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		_ = second.Rollback(t.Context())
		f.usable(tx, "1min")
	})
}

func TestTimeoutOfTheTransactionOrContextComesFirst(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		holder := f.begin()
		f.in(holder, `SELECT FROM STOCK FOR UPDATE`)
		tx := begin()
		f.in(tx, "SET LOCAL lock_timeout = 20")
		begun := time.Now()
		_, err := rowlock.ForShare[item](t.Context(), tx, f.stock.Table, []string{"b"}, rowlock.WithTimeout(time.Minute))
		if took := time.Since(begun); !errors.Is(err, rowlock.ErrTimeout) || took > 20*time.Second {
			t.Errorf("own lock_timeout, after %v: %v", took, err)
		}
		f.in(tx, "SET LOCAL lock_timeout = 0")
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
		defer cancel()
		_, err = rowlock.ForShare[item](ctx, tx, f.stock.Table, []string{"b"}, rowlock.WithTimeout(time.Minute))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rowlock.ErrNotAcquired) || errors.Is(err, rowlock.ErrTimeout) {
			t.Errorf("deadline: %v", err)
		}
		f.in(tx, "SET LOCAL statement_timeout = 30")
		var pg *pgconn.PgError
		_, err = rowlock.ForShare[item](t.Context(), tx, f.stock.Table, []string{"b"})
		if !errors.Is(err, rowlock.ErrNotAcquired) || !errors.As(err, &pg) || pg.Code != "57014" {
			t.Errorf("statement_timeout: %v", err)
		}
		_ = holder.Rollback(t.Context())
		f.usable(tx, "0")
	})
}

// TestTimeoutCoversTheTable: a statement that is prepared waits for a lock on the table.
func TestTimeoutCoversTheTable(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		ddl, tx := f.begin(), begin()
		f.in(ddl, "LOCK TABLE STOCK")
		if _, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a"}, rowlock.WithTimeout(30*time.Millisecond)); !errors.Is(err, rowlock.ErrTimeout) {
			t.Errorf("%v", err)
		}
		_ = ddl.Rollback(t.Context())
		f.usable(tx, "0")
	})
}

// TestRowInsertedAgainIsFound: the row is deleted during the wait, and the new row is not in the
// statement's snapshot.
func TestRowInsertedAgainIsFound(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		for name, call := range map[string]func(tx rowlock.Tx) error{
			"ForUpdate": func(tx rowlock.Tx) error {
				rows, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a", "b", "c"})
				if err == nil && (skus(values(rows)) != "abc" || values(rows)[1].Left != 3) {
					t.Errorf("%v", rows)
				}
				return err
			},
			"Reserve": func(tx rowlock.Tx) error {
				left, err := rowlock.Reserve(t.Context(), tx, f.stock, []rowlock.Line[string, int]{{"b", 3}})
				if n, _ := left.Get("b"); err == nil && n != "0" {
					t.Errorf("%v", left)
				}
				return err
			},
		} {
			holder, tx := f.begin(), begin()
			f.in(holder, `DELETE FROM STOCK WHERE "the sku" = 'b'`)
			f.in(holder, `INSERT INTO STOCK VALUES ('b', 3)`)
			done := later(func() error { return call(tx) })
			f.waiting(1)
			if err := holder.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			_ = tx.Rollback(t.Context())
		}
	})
}

func TestSnapshotTooOldIsTheServersError(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	f.in(tx, "SELECT FROM STOCK")
	f.sql(`UPDATE STOCK SET warehouse = 2 WHERE "the sku" = 'a'`)
	var pg *pgconn.PgError
	if _, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"a"}); !errors.As(err, &pg) || pg.Code != "40001" {
		t.Errorf("%v", err)
	}
	if rows, err := rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"b"}); err != nil || skus(values(rows)) != "b" {
		t.Errorf("another row after it: %v %v", rows, err)
	}
}
