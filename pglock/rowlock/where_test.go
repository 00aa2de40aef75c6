package rowlock_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// unreadable is a value that fails.
type unreadable struct{}

func (unreadable) Value() (driver.Value, error) { return nil, errBroken }

// TestNullIsFoundInEachForm: a NULL that comes in a pointer or in a type of its own asks for NULL, and does
// not silently find nothing.
func TestNullIsFoundInEachForm(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql(`UPDATE STOCK SET warehouse = NULL WHERE "the sku" = 'c'`)
		one := 1
		for name, tc := range map[string]struct {
			value any
			equal string
			not   string
		}{
			"nil":         {nil, "c", "abde"},
			"pointer":     {(*int)(nil), "c", "abde"},
			"sql.Null":    {sql.NullInt32{}, "c", "abde"},
			"pgtype":      {pgtype.Int4{}, "c", "abde"},
			"a number":    {1, "abde", ""},
			"its pointer": {&one, "abde", ""},
			"not null":    {sql.NullInt32{Int32: 1, Valid: true}, "abde", ""},
		} {
			for op, want := range map[rowlock.Op]string{rowlock.Equal: tc.equal, rowlock.NotEqual: tc.not} {
				tx := begin()
				rows, err := rowlock.Claim[item](t.Context(), tx, f.stock.Table, 9, rowlock.Where("warehouse", op, tc.value))
				if err != nil || skus(rows) != want {
					t.Errorf("%s %s: %q %v", op, name, skus(rows), err)
				}
				_ = tx.Rollback(t.Context())
			}
			if want := tc.value; tc.not != "" {
				if _, err := rowlock.Claim[item](t.Context(), begin(), f.stock.Table, 9, rowlock.Where("warehouse", rowlock.Less, want)); !errors.Is(err, rowlock.ErrInvalidOption) {
					t.Errorf("less than %s: %v", name, err)
				}
			}
		}
		_, err := rowlock.Claim[item](t.Context(), begin(), f.stock.Table, 9, rowlock.Where("warehouse", rowlock.Equal, unreadable{}))
		if !errors.Is(err, rowlock.ErrInvalidOption) || !errors.Is(err, errBroken) {
			t.Errorf("unreadable: %v", err)
		}
	})
}
