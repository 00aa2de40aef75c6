package rowlock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestDeadlockIsReported, with the locks that the transaction held before, which it keeps.
func TestDeadlockIsReported(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		one, other := begin(), begin()
		f.in(one, "SET LOCAL deadlock_timeout = '10ms'")
		// So that the transaction one is the victim.
		f.in(other, "SET LOCAL deadlock_timeout = '1h'")
		lock := func(tx advisory.Tx, key string) error { return f.lock(t.Context(), tx, key) }
		ok(t, errors.Join(lock(one, "a"), lock(other, "b")))
		done := later(func() error { return lock(other, "a") })
		f.waiting(1)
		var pg *pgconn.PgError
		if err := lock(one, "b"); !errors.Is(err, advisory.ErrDeadlock) || !errors.Is(err, advisory.ErrNotAcquired) || !errors.As(err, &pg) {
			t.Errorf("%v", err)
		}
		f.in(one, "SELECT 1")
		ok(t, one.Rollback(t.Context()))
		if err := <-done; err != nil {
			t.Errorf("the other: %v", err)
		}
	})
}

// TestChangedKeyDoesNotBreakTheOrder: the trap of ORDER BY with FOR UPDATE. A row whose key changes
// during the wait is returned with its new key, in that key's order. The control is the plain statement.
func TestChangedKeyDoesNotBreakTheOrder(t *testing.T) {
	t.Parallel()
	plain := func(f fixture, tx pgx.Tx) string {
		found, _ := tx.Query(t.Context(), f.named(`SELECT * FROM (SELECT "the sku" FROM STOCK WHERE "the sku" = ANY ('{a,b,m}') ORDER BY "the sku" FOR UPDATE) x`))
		rows, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Error(err)
		}
		return strings.Join(rows, "")
	}
	for want, lock := range map[string]func(f fixture, tx pgx.Tx) string{
		"bm": func(f fixture, tx pgx.Tx) string { return f.locked(tx, "abm", rowlock.AllowMissing) }, "mb": plain,
	} {
		f := newFixture(t)
		holder, tx := f.begin(), f.begin()
		f.in(holder, `UPDATE STOCK SET "the sku" = 'm' WHERE "the sku" = 'a'`)
		got := ""
		done := later(func() error { got = lock(f, tx); return nil })
		f.waiting(1)
		if err := errors.Join(holder.Commit(t.Context()), <-done); err != nil || got != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
}

// TestP37_RowsAreLockedInTheOrderOfTheKey, not in that of the table or of the arguments: while the
// call waits for the third row, the two before it are locked and those after it are free.
func TestP37_RowsAreLockedInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		f.sql("TRUNCATE STOCK")
		f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{e,d,c,b,a}'::text[]) v`)
		lines := []line{{"d", "1"}, {"a", "1"}, {"c", "1"}, {"e", "1"}, {"b", "1"}}
		for name, call := range map[string]func(tx advisory.Tx) error{
			"Lock":           func(tx advisory.Tx) error { return f.lock(t.Context(), tx, "daceb") },
			"Lock, ForShare": func(tx advisory.Tx) error { return f.lock(t.Context(), tx, "daceb", rowlock.ForShare) },
			"Reserve":        func(tx advisory.Tx) error { return second(rowlock.Reserve(t.Context(), tx, f.stock, lines)) },
			"Restock":        func(tx advisory.Tx) error { return second(rowlock.Restock(t.Context(), tx, f.stock, lines)) },
		} {
			holder, tx := f.begin(), begin()
			f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'c' FOR UPDATE`)
			done := later(func() error { return call(tx) })
			f.waiting(1)
			if free := f.free(); free != "de" {
				t.Errorf("%s: %q are free, de should be", name, free)
			}
			if err := errors.Join(holder.Rollback(t.Context()), <-done, tx.Rollback(t.Context())); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
