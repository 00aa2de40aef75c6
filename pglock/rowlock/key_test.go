package rowlock_test

import (
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

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
		"Reserve": second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"A", "1"}})),
		"Lock":    f.lock(t.Context(), tx, "Ax"),
	} {
		if !errors.Is(err, advisory.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.usable(tx, "0")
}

// TestKeysAreReturnedAsPassed: 1.00 and 2.0 are the numbers 1 and 2. A column that holds equal numbers
// is not unique, and neither are keys that are equal for the server.
func TestKeysAreReturnedAsPassed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	f.in(tx, "CREATE TEMP TABLE numbered (id numeric, n bigint, s text) ON COMMIT DROP")
	f.in(tx, "INSERT INTO numbered VALUES (3, 7, 'x'), (2.0, 8, 'y'), (1, 9, 'z'), (5.0, 1, ''), (5.00, 2, '')")
	by := func(column string) rowlock.Table { return rowlock.Table{Name: pgx.Identifier{"numbered"}, Key: column} }
	got, err := rowlock.Lock(t.Context(), tx, by("id"), []string{"03", "2", "1.00", "4"}, rowlock.AllowMissing)
	if err != nil || !slices.Equal(got, []string{"1.00", "2", "03"}) {
		t.Errorf("%v %v", got, err)
	}
	for name, err := range map[string]error{
		"sql.NullInt64":  second(rowlock.Lock(t.Context(), tx, by("n"), []sql.NullInt64{{Int64: 7, Valid: true}})),
		"sql.NullString": second(rowlock.Lock(t.Context(), tx, by("s"), []sql.NullString{{String: "x", Valid: true}})),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"equal rows":             second(rowlock.Lock(t.Context(), tx, by("id"), []string{"5"})),
		"equal rows, SkipLocked": second(rowlock.Lock(t.Context(), tx, by("id"), []string{"5"}, rowlock.SkipLocked)),
		"equal lines":            second(rowlock.Reserve(t.Context(), tx, rowlock.Stock{Table: by("id"), Quantity: "n"}, []line{{"1", "1"}, {"1.0", "1"}})),
		"a word for a number":    second(rowlock.Lock(t.Context(), tx, by("n"), []string{"seven"})),
		"NUL":                    second(rowlock.Lock(t.Context(), tx, by("s"), []string{"x\x00"})),
		"not UTF-8":              second(rowlock.Lock(t.Context(), tx, by("s"), []string{"\xff"})),
	} {
		if !errors.Is(err, advisory.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := second(rowlock.Lock(t.Context(), tx, by("id"), []string{"1", "1.0"})); err == nil {
		t.Error("keys that are equal for the server were both locked")
	}
	if err := second(rowlock.Lock(t.Context(), tx, by("n"), []string{"99999999999999999999"})); !errors.Is(err, rowlock.ErrRange) {
		t.Errorf("a number that is too large: %v", err)
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
			for _, tx := range []advisory.Tx{f.begin(), f.beginSQL()} {
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
// is that of the returned keys, as positions in keys.
func keyType[K comparable](t *testing.T, f fixture, tx advisory.Tx, typ string, keys []K, order string) {
	t.Helper()
	f.in(tx, "SAVEPOINT one")
	// A name for each type, because pgx caches statements.
	table := rowlock.Table{Name: pgx.Identifier{"kt " + typ}, Key: "id"}
	f.in(tx, "CREATE TEMP TABLE "+table.Name.Sanitize()+" (id "+typ+" PRIMARY KEY, n text, quantity numeric DEFAULT 5) ON COMMIT DROP")
	for i, k := range keys {
		f.in(tx, "INSERT INTO "+table.Name.Sanitize()+" (id, n) VALUES ($1::text::"+typ+", $2)", written(k), string(rune('1'+i)))
	}
	locked, err := rowlock.Lock(t.Context(), tx, table, keys)
	got := ""
	for _, k := range locked {
		got += string(rune('1' + slices.Index(keys, k)))
	}
	if err != nil || len(got) != len(keys) || order != "" && got != order {
		t.Errorf("%s: %q %v", typ, got, err)
	}
	lines := rowlock.Lines(rowlock.Take(keys[0], 2))
	if left, err := rowlock.Reserve(t.Context(), tx, rowlock.Stock{Table: table, Quantity: "quantity"}, lines); err != nil || left[keys[0]] != "3" {
		t.Errorf("%s: Reserve: %v %v", typ, left, err)
	}
	f.in(tx, "DELETE FROM "+table.Name.Sanitize()+" WHERE n = '1'")
	var missing *rowlock.MissingError
	_, err = rowlock.Lock(t.Context(), tx, table, keys, rowlock.ForShare)
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
