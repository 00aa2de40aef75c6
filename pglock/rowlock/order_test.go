package rowlock_test

import (
	"errors"
	"testing"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestP37_RowsAreLockedInTheOrderOfTheKey, not in that of the table, nor of the arguments: while the third is waited for, the
// two before it are locked, and those behind it are free.
func TestP37_RowsAreLockedInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql("TRUNCATE STOCK")
		f.sql(`INSERT INTO STOCK SELECT v, 10, 1 FROM unnest('{e,d,c,b,a}'::text[]) v`)
		keys, lines := []string{"d", "a", "c", "e", "b"}, []line{{"d", 1}, {"a", 1}, {"c", 1}, {"e", 1}, {"b", 1}}
		for name, call := range map[string]func(tx rowlock.Tx) error{
			"ForUpdate": func(tx rowlock.Tx) error {
				return second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, keys))
			},
			"ForShare": func(tx rowlock.Tx) error { return second(rowlock.ForShare[item](t.Context(), tx, f.stock.Table, keys)) },
			"Reserve":  func(tx rowlock.Tx) error { return second(rowlock.Reserve(t.Context(), tx, f.stock, lines)) },
			"Restock":  func(tx rowlock.Tx) error { return second(rowlock.Restock(t.Context(), tx, f.stock, lines)) },
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
