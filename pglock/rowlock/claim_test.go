package rowlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

func TestClaimDistributesAQueue(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		first, second, third := begin(), begin(), begin()
		claim := func(tx rowlock.Tx, limit int, opts ...rowlock.ClaimOption) string {
			t.Helper()
			rows, err := rowlock.Claim[item](t.Context(), tx, f.stock.Table, limit, opts...)
			if err != nil {
				t.Fatal(err)
			}
			return skus(rows)
		}
		if got := claim(first, 2); got != "ab" {
			t.Errorf("first: %q", got)
		}
		if got := claim(second, 2, rowlock.OrderByDescending("the sku")); got != "ed" {
			t.Errorf("second: %q", got)
		}
		if got := claim(third, 9); got != "c" {
			t.Errorf("third: %q", got)
		}
		if got := claim(begin(), 1); got != "" {
			t.Errorf("an empty queue: %q", got)
		}
		f.in(first, `DELETE FROM STOCK WHERE "the sku" = ANY ($1)`, []string{"a", "b"})
		if err := first.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := claim(begin(), 9); got != "de" {
			t.Errorf("after a commit and a rollback: %q", got)
		}
	})
}

func TestClaimSelectsReadyRows(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql(`UPDATE STOCK SET warehouse = NULL, due = clock_timestamp() - interval '1 s' WHERE "the sku" = 'a'`)
		f.sql(`UPDATE STOCK SET warehouse = 2, due = clock_timestamp() + interval '1 h' WHERE "the sku" = 'b'`)
		f.sql(`UPDATE STOCK SET "qty""left" = 3, due = clock_timestamp() - interval '1 h' WHERE "the sku" = 'c'`)
		for _, tc := range []struct {
			want string
			opts []rowlock.ClaimOption
		}{
			{"ac", []rowlock.ClaimOption{rowlock.Due("due")}},
			{"ca", []rowlock.ClaimOption{rowlock.Due("due"), rowlock.OrderBy("due")}},
			{"a", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.Equal, nil)}},
			{"bcde", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.NotEqual, nil)}},
			{"cde", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.NotEqual, 2)}},
			{"b", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.Greater, 1)}},
			{"cde", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.Less, 2)}},
			{"bcde", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.LessOrEqual, 2)}},
			{"b", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.GreaterOrEqual, 2)}},
			{"de", []rowlock.ClaimOption{rowlock.Where("warehouse", rowlock.Equal, 1), rowlock.Where(`qty"left`, rowlock.Equal, 10)}},
			{"c", []rowlock.ClaimOption{rowlock.Where("the sku", rowlock.Equal, "c")}},
			{"", []rowlock.ClaimOption{rowlock.Where("the sku", rowlock.Equal, "' OR true --")}},
			{"debac", []rowlock.ClaimOption{rowlock.OrderByDescending("due"), rowlock.OrderBy("warehouse"), rowlock.Where("the sku", rowlock.LessOrEqual, "e")}},
		} {
			tx := begin()
			rows, err := rowlock.Claim[item](t.Context(), tx, f.stock.Table, 9, tc.opts...)
			if got := skus(rows); err != nil || got != tc.want {
				t.Errorf("%q, want %q: %v", got, tc.want, err)
			}
			_ = tx.Rollback(t.Context())
		}
	})
}

// TestClaimBoundsTheWaitForTheTable: rows are skipped, but a lock on the whole table is waited for.
func TestClaimBoundsTheWaitForTheTable(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		ddl, tx := f.begin(), begin()
		f.in(ddl, "LOCK TABLE STOCK")
		_, late := rowlock.Claim[item](t.Context(), tx, f.stock.Table, 1, rowlock.WithTimeout(30*time.Millisecond))
		_, busy := rowlock.Claim[item](t.Context(), tx, f.stock.Table, 1, rowlock.NoWait())
		if !errors.Is(late, rowlock.ErrTimeout) || !errors.Is(busy, rowlock.ErrNotAcquired) || errors.Is(busy, rowlock.ErrTimeout) {
			t.Errorf("%v, %v", late, busy)
		}
		_ = ddl.Rollback(t.Context())
		f.usable(tx, "0")
	})
}

// TestClaimOfADeadWorkerIsFree as soon as the server notices.
func TestClaimOfADeadWorkerIsFree(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		worker := begin()
		pid := value[int](f, worker, "SELECT pg_backend_pid()")
		if rows, err := rowlock.Claim[item](t.Context(), worker, f.stock.Table, 3); err != nil || len(rows) != 3 {
			t.Fatalf("%v %v", rows, err)
		}
		f.in(worker, `DELETE FROM STOCK WHERE "the sku" = 'a'`)
		f.sql("SELECT pg_terminate_backend($1)", pid)
		pgtest.Eventually(t, 10*time.Second, "its backend ends", func() bool {
			return value[int](f, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
		})
		rows, err := rowlock.Claim[item](t.Context(), begin(), f.stock.Table, 9)
		if err != nil || skus(rows) != "abcde" {
			t.Errorf("%v %v", rows, err)
		}
		if _, err := rowlock.Claim[item](t.Context(), worker, f.stock.Table, 3); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("by the dead worker: %v", err)
		}
	})
}
