package rowlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

func TestClaimDistributesAQueue(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		first, second, third := begin(), begin(), begin()
		claim := func(tx rowlock.Tx, rest string, args ...any) string {
			t.Helper()
			got, err := f.claim(t.Context(), tx, rest, args...)
			if err != nil {
				t.Error(err)
			}
			return got
		}
		if got := claim(first, `ORDER BY "the sku" LIMIT $1 -- the first`, 2); got != "ab" {
			t.Errorf("first: %q", got)
		}
		if got := claim(second, `WHERE "the sku" <> $2 ORDER BY "the sku" DESC LIMIT $1 ; `, 2, "d"); got != "ec" {
			t.Errorf("second: %q", got)
		}
		if got := claim(third, "FOR UPDATE"); got != "d" {
			t.Errorf("third: %q", got)
		}
		if got := claim(begin(), ""); got != "" {
			t.Errorf("an empty queue: %q", got)
		}
		f.in(first, `DELETE FROM STOCK WHERE "the sku" = ANY ($1)`, []string{"a", "b"})
		if err := first.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := claim(begin(), `ORDER BY "the sku"`); got != "ce" {
			t.Errorf("after a commit and a rollback: %q", got)
		}
	})
}

// TestClaimLocksTheQueueAlone, not the tables that the SELECT joins. It refuses a queue that is a WITH
// query or a function, for which the server would otherwise return rows without locking them.
func TestClaimLocksTheQueueAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	join := f.named(`SELECT s."the sku" FROM STOCK AS s JOIN STOCK AS o ON o."the sku" = chr(ascii(s."the sku") + 1) WHERE s."the sku" = $1`)
	for _, key := range []string{"a", "b"} { // the second row is joined to the first
		rows, err := rowlock.Claim(t.Context(), f.begin(), pgx.RowTo[string], "s", join, key)
		if err != nil || len(rows) != 1 {
			t.Errorf("%v %v", rows, err)
		}
	}
	tx := f.begin()
	for _, sql := range []string{"WITH q AS (SELECT * FROM STOCK) SELECT \"the sku\" FROM q", "SELECT q FROM unnest('{a}'::text[]) q", "SELECT \"the sku\" FROM STOCK AS s"} {
		if rows, err := rowlock.Claim(t.Context(), tx, pgx.RowTo[string], "q", f.named(sql)); err == nil {
			t.Errorf("%s: %v", sql, rows)
		}
	}
	if rows, err := f.claim(t.Context(), tx, `WHERE "the sku" > 'b'`); err != nil || rows != "cde" {
		t.Errorf("after them: %v %v", rows, err)
	}
}

// TestClaimBoundsTheWaitForTheTable: rows are skipped, but a lock on the whole table is waited for.
func TestClaimBoundsTheWaitForTheTable(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		ddl, tx := f.begin(), begin()
		f.in(ddl, "LOCK TABLE STOCK")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := f.claim(ctx, tx, ""); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rowlock.ErrNotAcquired) {
			t.Errorf("%v", err)
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
		if rows, err := f.claim(t.Context(), worker, "LIMIT 3"); err != nil || len(rows) != 3 {
			t.Fatalf("%v %v", rows, err)
		}
		f.in(worker, `DELETE FROM STOCK WHERE "the sku" = 'a'`)
		f.sql("SELECT pg_terminate_backend($1)", pid)
		pgtest.Eventually(t, 10*time.Second, "its backend ends", func() bool {
			return value[int](f, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
		})
		rows, err := f.claim(t.Context(), begin(), `ORDER BY "the sku"`)
		if err != nil || rows != "abcde" {
			t.Errorf("%v %v", rows, err)
		}
		if _, err := f.claim(t.Context(), worker, ""); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("by the dead worker: %v", err)
		}
	})
}
