package rowlock_test

import (
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestNilKeysAreRefused: their methods would panic.
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

// TestForeignOperatorIsRefused: an operator = in search_path that hides the type's own may find a
// row whose key was not passed.
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

// TestRowsNeedNotHaveTheKey: the results are found by the key that was passed, in its own form.
func TestRowsNeedNotHaveTheKey(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		tx := begin()
		f.in(tx, "CREATE TEMP TABLE numbered (id numeric PRIMARY KEY, \"pglock key\" text, positions int) ON COMMIT DROP")
		f.in(tx, "INSERT INTO numbered VALUES (1, 'one', 11), (2.0, 'two', 22), (3, 'three', 33)")
		type row struct {
			Name      string `db:"pglock key"`
			Positions int
		}
		table := rowlock.Table{Name: pgx.Identifier{"numbered"}, Key: "id"}
		rows, err := rowlock.ForUpdate[row](t.Context(), tx, table, []string{"03", "2", "1.00", "4"}, rowlock.AllowMissing())
		if err != nil || rows.Len() != 3 {
			t.Fatalf("%v %v", rows, err)
		}
		for key, want := range map[string]row{"1.00": {"one", 11}, "2": {"two", 22}, "03": {"three", 33}} {
			if got, ok := rows.Get(key); !ok || got != want {
				t.Errorf("%s: %v", key, got)
			}
		}
		for _, none := range []string{"4", "1", "2.0"} {
			if got, ok := rows.Get(none); ok || got != (row{}) {
				t.Errorf("%s: %v", none, got)
			}
		}
		order := ""
		for k := range rows.All() {
			if order += k + " "; k == "2" {
				break
			}
		}
		if order != "1.00 2 " {
			t.Errorf("order: %s", order)
		}
	})
}

// TestKeysThatAreValuers: times to the microsecond, and wrapped values as the values they hold.
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

// uuid is a key type without methods.
type uuid [16]byte

// TestKeyTypes: the server parses a key as its column's type, in every mode of pgx.
func TestKeyTypes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			in := f.stock.Name[:1].Sanitize()
			f.sql("CREATE TYPE " + in + ".enum AS ENUM ('z', 'it''s')")
			f.sql("CREATE DOMAIN " + in + ".code AS varchar(9) CHECK (value <> '')")
			for _, tx := range []rowlock.Tx{f.begin(), f.beginSQL()} {
				keyType(t, f, tx, "integer", []int{3, -1, 2}, "231")
				keyType(t, f, tx, "bigint", []uint64{3, 1 << 40}, "12")
				keyType(t, f, tx, "smallint", []int8{3}, "1")
				keyType(t, f, tx, "numeric", []string{"1.50", "1.25"}, "21")
				keyType(t, f, tx, "varchar(5)", []string{`q"u`, `b\s`, "{a}", "", "NULL"}, "")
				keyType(t, f, tx, `text COLLATE "C"`, []string{"a", "B", "é", "$1"}, "4213")
				keyType(t, f, tx, "uuid", []uuid{{15: 2}, {15: 1}}, "21")
				keyType(t, f, tx, "uuid", []pgtype.UUID{{Bytes: uuid{15: 2}, Valid: true}}, "1")
				keyType(t, f, tx, "date", []time.Time{time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)}, "1")
				keyType(t, f, tx, "timestamptz", []time.Time{time.Unix(17, 1000), time.Unix(17, 0)}, "21")
				keyType(t, f, tx, in+".enum", []string{"it's", "z"}, "21")
				keyType(t, f, tx, in+".code", []string{"y", "x"}, "21")
				keyType(t, f, tx, "char(3)", []string{"b", "a"}, "21")
			}
		})
	}
}

// keyType creates a table with a key of the type, and locks its rows; one key has no row. The order
// is that of the returned rows, as positions in keys.
func keyType[K comparable](t *testing.T, f fixture, tx rowlock.Tx, typ string, keys []K, order string) {
	t.Helper()
	f.in(tx, "SAVEPOINT one")
	// A name for each type, because pgx caches statements.
	table := rowlock.Table{Name: pgx.Identifier{"kt " + typ}, Key: "id"}
	f.in(tx, "CREATE TEMP TABLE "+table.String()+" (id "+typ+" PRIMARY KEY, n text, quantity numeric DEFAULT 5) ON COMMIT DROP")
	for i, k := range keys {
		f.in(tx, "INSERT INTO "+table.String()+" (id, n) VALUES ($1::text::"+typ+", $2)", written(k), string(rune('1'+i)))
	}
	rows, err := rowlock.ForUpdate[struct {
		ID any
		N  string
	}](t.Context(), tx, table, keys)
	got := ""
	for k, r := range rows.All() {
		got += r.N
		if k != keys[r.N[0]-'1'] {
			t.Errorf("%s: row %s has key %v", typ, r.N, k)
		}
	}
	if err != nil || len(got) != len(keys) || order != "" && got != order {
		t.Errorf("%s: %q %v", typ, got, err)
	}
	lines := rowlock.Lines(rowlock.Take(keys[0], 2))
	if left, err := rowlock.Reserve(t.Context(), tx, rowlock.Stock{Table: table, Quantity: "quantity"}, lines); err != nil || values(left)[0] != "3" {
		t.Errorf("%s: Reserve: %v %v", typ, left, err)
	}
	f.in(tx, "DELETE FROM "+table.String()+" WHERE n = '1'")
	var missing *rowlock.MissingError
	_, err = rowlock.ForShare[struct{ ID any }](t.Context(), tx, table, keys)
	if !errors.As(err, &missing) || len(missing.Keys) != 1 || !reflect.DeepEqual(missing.Keys[0], keys[0]) {
		t.Errorf("%s: a missing key: %v", typ, err)
	}
	f.in(tx, "ROLLBACK TO one")
}

// written returns a key as an SQL literal.
func written(k any) string {
	switch k := k.(type) {
	case time.Time:
		return k.Format(time.RFC3339Nano)
	case uuid:
		return hex.EncodeToString(k[:])
	case pgtype.UUID:
		return k.String()
	}
	return fmt.Sprint(k)
}
