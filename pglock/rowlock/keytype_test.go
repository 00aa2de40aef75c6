package rowlock_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// uuid is a key without methods.
type uuid [16]byte

// TestKeyTypes: the server reads a key as its column's type, in each way that pgx has to send it.
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

// keyType makes a table with a key of the type, and locks its rows, but for one key that has
// none. The order is that of the rows found, as places in keys.
func keyType[K comparable](t *testing.T, f fixture, tx rowlock.Tx, typ string, keys []K, order string) {
	t.Helper()
	f.in(tx, "SAVEPOINT one")
	table := rowlock.Table{Name: pgx.Identifier{"kt " + typ}, Key: "id"} // a name of its own, for the cache of statements
	f.in(tx, "CREATE TEMP TABLE "+table.String()+" (id "+typ+" PRIMARY KEY, n text, quantity numeric DEFAULT 5) ON COMMIT DROP")
	for i, k := range keys {
		f.in(tx, "INSERT INTO "+table.String()+" (id, n) VALUES ($1::text::"+typ+", $2)", written(k), string(rune('1'+i)))
	}
	rows, err := rowlock.ForUpdate[struct {
		ID any
		N  string
	}](t.Context(), tx, table, keys)
	got := ""
	for _, r := range rows {
		got += r.N
	}
	if err != nil || len(got) != len(keys) || order != "" && got != order {
		t.Errorf("%s: %q %v", typ, got, err)
	}
	lines := []rowlock.Line[K, int]{{keys[0], 2}}
	if left, err := rowlock.Reserve(t.Context(), tx, rowlock.Stock{Table: table, Quantity: "quantity"}, lines); err != nil || left[0] != "3" {
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

// written is a key as one would write it in SQL.
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
