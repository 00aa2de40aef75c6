package rowlock_test

import (
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// Base is embedded: its fields are the row's.
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

// TestColumnsOfAStruct: embedded fields count, hidden and skipped ones do not, names are in snake case, and what stands behind a comma
// in a tag is somebody else's.
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
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("%+v %v", rows, err)
	}
	if _, err := rowlock.ForShare[wide](t.Context(), f.begin(), table, []int{1, 2, 3}, rowlock.AllowMissing(), rowlock.NoWait(), here); err == nil {
		t.Error("not locked")
	}
	if rows, err = rowlock.ForUpdate[wide](t.Context(), f.begin(), table, []int{2, 1}, rowlock.SkipLocked(), here); err != nil || rows == nil || len(rows) > 0 {
		t.Errorf("%+v %v", rows, err)
	}
	if _, err := rowlock.ForKeyShare[wide](t.Context(), f.begin(), table, []int{2, 3}, rowlock.Where("region", rowlock.Greater, 0), rowlock.SkipLocked()); err != nil {
		t.Errorf("%v", err) // the row of region 2 alone is free
	}
	_ = wide{}.hidden
}
