package rowlock_test

import (
	"database/sql"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestNilKeysAreRefused: a method of theirs would panic.
func TestNilKeysAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	for name, err := range map[string]error{
		"text":   second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []*netip.Addr{nil})),
		"valuer": second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []*pgtype.UUID{nil})),
		"time":   second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []*time.Time{nil})),
		"string": second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []any{(*string)(nil)})),
	} {
		if !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.usable(tx, "0")
}

// TestForeignOperatorIsRefused: search_path can put an operator = before the type's own, by which a row has a key that
// is none of those given.
func TestForeignOperatorIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	in := f.stock.Name[:1].Sanitize()
	f.sql("CREATE FUNCTION " + in + ".same(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) OPERATOR(pg_catalog.=) lower($2)'")
	f.sql("CREATE OPERATOR " + in + ".= (LEFTARG = text, RIGHTARG = text, FUNCTION = " + in + ".same)")
	tx := f.begin()
	f.in(tx, "SELECT set_config('search_path', $1, true)", in+", pg_catalog")
	for name, err := range map[string]error{
		"Reserve":   second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"A", 1}})),
		"ForUpdate": second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"A", "x"})),
	} {
		if !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.usable(tx, "0")
}

// TestColumnsWithoutAFieldAreRefused before anything is sent. (The transaction has ended, and would say so.)
func TestColumnsWithoutAFieldAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	_ = tx.Rollback(t.Context())
	type row struct {
		SKU       string `db:"the sku"`
		WareHouse *int   // pgx finds the column warehouse for it
	}
	for name, tc := range map[string]struct {
		columns []string
		err     error
	}{
		"no field":         {[]string{"the sku", "due"}, rowlock.ErrInvalidOption},
		"without the key":  {[]string{"warehouse"}, rowlock.ErrTx},
		"case, underscore": {[]string{"the sku", "ware_House"}, rowlock.ErrTx},
	} {
		if _, err := rowlock.Claim[row](t.Context(), tx, f.stock.Table, 1, rowlock.WithColumns(tc.columns...)); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	open := f.begin()
	rows, err := rowlock.Claim[row](t.Context(), open, f.stock.Table, 1, rowlock.WithColumns("warehouse"))
	if err != nil || len(rows) != 1 || rows[0].WareHouse == nil || *rows[0].WareHouse != 1 {
		t.Errorf("%v %v", rows, err)
	}
}

// TestKeysThatAreValuers: to the microsecond, and as what they hold.
func TestKeysThatAreValuers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	table := rowlock.Table{Name: pgx.Identifier{"valued"}, Key: "k"}
	f.in(tx, "CREATE TEMP TABLE valued (k timestamptz PRIMARY KEY, n bigint UNIQUE, s text UNIQUE, a inet UNIQUE) ON COMMIT DROP")
	at := time.Unix(1_700_000_000, 123_456_000)
	f.in(tx, "INSERT INTO valued VALUES ($1, 7, 'x', '10.0.0.1')", at)
	type row struct {
		K time.Time
		N int64
		S string
		A netip.Addr
	}
	by := func(column string) rowlock.Table { return rowlock.Table{Name: table.Name, Key: column} }
	for name, err := range map[string]error{
		"sql.NullTime":   second(rowlock.ForUpdate[row](t.Context(), tx, table, []sql.NullTime{{Time: at, Valid: true}})),
		"sql.NullInt64":  second(rowlock.ForUpdate[row](t.Context(), tx, by("n"), []sql.NullInt64{{Int64: 7, Valid: true}})),
		"sql.NullString": second(rowlock.ForUpdate[row](t.Context(), tx, by("s"), []sql.NullString{{String: "x", Valid: true}})),
		"netip.Addr":     second(rowlock.ForUpdate[row](t.Context(), tx, by("a"), []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 1})})),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := second(rowlock.ForUpdate[row](t.Context(), tx, by("n"), []sql.NullFloat64{{Float64: 7, Valid: true}})); !errors.Is(err, rowlock.ErrInvalidOption) {
		t.Errorf("a float: %v", err)
	}
	if err := second(rowlock.ForUpdate[row](t.Context(), tx, by("n"), []sql.NullInt64{{}})); !errors.Is(err, rowlock.ErrInvalidOption) {
		t.Errorf("NULL: %v", err)
	}
}
