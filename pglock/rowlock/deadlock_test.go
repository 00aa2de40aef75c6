package rowlock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestDeadlockIsReported, with the locks that the transaction held before, which it keeps.
func TestDeadlockIsReported(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		one, other := begin(), begin()
		f.in(one, "SET LOCAL deadlock_timeout = '10ms'")
		// So that the transaction one is the victim.
		f.in(other, "SET LOCAL deadlock_timeout = '1h'")
		lock := func(tx rowlock.Tx, key string) error { return f.lock(t.Context(), tx, key) }
		if err := errors.Join(lock(one, "a"), lock(other, "b")); err != nil {
			t.Fatal(err)
		}
		done := later(func() error { return lock(other, "a") })
		f.waiting(1)
		var pg *pgconn.PgError
		if err := lock(one, "b"); !errors.Is(err, rowlock.ErrDeadlock) || !errors.Is(err, rowlock.ErrNotAcquired) || !errors.As(err, &pg) {
			t.Errorf("%v", err)
		}
		f.in(one, "SELECT 1")
		if err := one.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("the other: %v", err)
		}
	})
}

// TestChangedKeyDoesNotBreakTheOrder: the trap of ORDER BY with FOR UPDATE. A row whose key changes
// during the wait is returned with its new key, in that key's order.
func TestChangedKeyDoesNotBreakTheOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, tx := f.begin(), f.begin()
	f.in(holder, `UPDATE STOCK SET "the sku" = 'm' WHERE "the sku" = 'a'`)
	got := ""
	done := later(func() error { got = f.locked(tx, "abm", rowlock.AllowMissing); return nil })
	f.waiting(1)
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || got != "bm" {
		t.Errorf("%q %v", got, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	plain, err := f.plainOrder(t)
	if err != nil || plain != "nbc" {
		t.Errorf("the control, without the second sort: %q %v", plain, err)
	}
}

// plainOrder is the plain statement, which returns the rows in the wrong order.
func (f fixture) plainOrder(t *testing.T) (string, error) {
	t.Helper()
	f.sql(`INSERT INTO STOCK VALUES ('a', 1)`)
	holder, tx := f.begin(), f.begin()
	f.in(holder, `UPDATE STOCK SET "the sku" = 'n' WHERE "the sku" = 'a'`)
	var rows []string
	done := later(func() error {
		found, err := tx.Query(t.Context(), f.named(`SELECT * FROM (SELECT "the sku" FROM STOCK WHERE "the sku" = ANY ('{a,b,c,n}') ORDER BY "the sku" FOR UPDATE) x`))
		if err == nil {
			rows, err = pgx.CollectRows(found, pgx.RowTo[string])
		}
		return err
	})
	f.waiting(1)
	if err := holder.Commit(t.Context()); err != nil {
		return "", err
	}
	err := <-done
	return strings.Join(rows, ""), err
}

// TestP37_RowsAreLockedInTheOrderOfTheKey, not in that of the table or of the arguments: while the
// call waits for the third row, the two before it are locked and those after it are free.
func TestP37_RowsAreLockedInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql("TRUNCATE STOCK")
		f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{e,d,c,b,a}'::text[]) v`)
		lines := []line{{"d", "1"}, {"a", "1"}, {"c", "1"}, {"e", "1"}, {"b", "1"}}
		for name, call := range map[string]func(tx rowlock.Tx) error{
			"Lock":           func(tx rowlock.Tx) error { return f.lock(t.Context(), tx, "daceb") },
			"Lock, ForShare": func(tx rowlock.Tx) error { return f.lock(t.Context(), tx, "daceb", rowlock.ForShare) },
			"Reserve":        func(tx rowlock.Tx) error { return second(rowlock.Reserve(t.Context(), tx, f.stock, lines)) },
			"Restock":        func(tx rowlock.Tx) error { return second(rowlock.Restock(t.Context(), tx, f.stock, lines)) },
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
