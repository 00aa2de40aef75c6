package rowlock_test

import (
	"testing"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestRowThatMovesToAnotherPartitionIsFound: PostgreSQL says 40001 of it at every isolation level.
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
				if skus(rows) != "ab" {
					t.Errorf("locked: %v", rows)
				}
				return err
			},
			1: func(tx rowlock.Tx) error {
				left, err := rowlock.Reserve(t.Context(), tx, f.stock, []rowlock.Line[string, int]{{Key: "b", Quantity: 2}, {Key: "a", Quantity: 3}})
				if len(left) != 2 || left[0] != "8" || left[1] != "7" {
					t.Errorf("left: %v", left)
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
