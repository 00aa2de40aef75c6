package rowlock_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// Base is embedded: its fields belong to the row.
type Base struct {
	Note   string
	UserID int `db:"user_id,omitempty"`
}

// wide has a field of each kind.
type wide struct {
	hidden int
	Skip   chan int `db:"-"`
	Base
	HTTPServer string
	Route66    int
	A_B        int
}

// TestColumnsOfAStruct: embedded fields count, unexported and skipped ones do not. Names are in
// snake case, and options after a comma in the tag are ignored.
func TestColumnsOfAStruct(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	table := rowlock.Table{Name: pgx.Identifier{f.stock.Name[0], "wide"}, Key: "user_id"}
	f.sql("CREATE TABLE " + table.String() + " (user_id int, note text, http_server text, route66 int, a_b int, region int, PRIMARY KEY (user_id, region))")
	f.sql("INSERT INTO " + table.String() + " VALUES (1, 'n1', 's1', 61, 71, 1), (2, 'n2', 's2', 62, 72, 1), (2, 'n3', 's3', 63, 73, 2)")
	here := rowlock.Where("region", rowlock.Equal, 1)
	want := []wide{
		{Base: Base{"n1", 1}, HTTPServer: "s1", Route66: 61, A_B: 71},
		{Base: Base{"n2", 2}, HTTPServer: "s2", Route66: 62, A_B: 72},
	}
	rows, err := rowlock.ForUpdate[wide](t.Context(), f.begin(), table, []int{2, 1}, here)
	if err != nil || !reflect.DeepEqual(values(rows), want) {
		t.Errorf("%+v %v", rows, err)
	}
	if _, err := rowlock.ForShare[wide](t.Context(), f.begin(), table, []int{1, 2, 3}, rowlock.AllowMissing(), rowlock.NoWait(), here); err == nil {
		t.Error("not locked")
	}
	if rows, err = rowlock.ForUpdate[wide](t.Context(), f.begin(), table, []int{2, 1}, rowlock.SkipLocked(), here); err != nil || rows.Len() > 0 {
		t.Errorf("%+v %v", rows, err)
	}
	if _, err := rowlock.ForKeyShare[wide](t.Context(), f.begin(), table, []int{2, 3}, rowlock.Where("region", rowlock.Greater, 0), rowlock.SkipLocked()); err != nil {
		t.Errorf("%v", err) // only the row of region 2 is free
	}
	_ = wide{}.hidden
}

// unreadable is a value that fails.
type unreadable struct{}

func (unreadable) Value() (driver.Value, error) { return nil, errBroken }

// TestNullIsFoundInEachForm: a nil pointer or a Valuer without a value selects NULL, and does not
// silently select nothing.
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
