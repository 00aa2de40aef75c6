package rowlock_test

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

type line = rowlock.Line[string, int]

func TestReserveTakesAllOrNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		tx := begin()
		left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"c", 3}, {"a", 10}})
		if err != nil || !reflect.DeepEqual(values(left), []rowlock.Decimal{"7", "0"}) {
			t.Fatalf("%v %v", left, err)
		}
		if free := f.free(); free != "bde" {
			t.Errorf("free: %q", free)
		}
		f.in(tx, "SAVEPOINT one")
		_, err = rowlock.Reserve(t.Context(), tx, f.stock, []line{{"d", 11}, {"x", 1}, {"b", 10}, {"a", 2}})
		var short *rowlock.ShortError
		want := []rowlock.Shortage{
			{Key: "d", Wanted: "11", Available: "10"}, {Key: "x", Wanted: "1", Available: "0", Missing: true}, {Key: "a", Wanted: "2", Available: "0"},
		}
		if !errors.As(err, &short) || !reflect.DeepEqual(short.Lines, want) || short.Table != f.stock.String() ||
			!errors.Is(err, rowlock.ErrShort) || !errors.Is(err, rowlock.ErrMissing) || errors.Is(err, rowlock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		if d, ok := short.Line("d"); !ok || d != want[0] {
			t.Errorf("the line of d: %v", d)
		}
		for _, key := range []any{"b", 1, []string{"d"}, nil} {
			if l, ok := short.Line(key); ok || l != (rowlock.Shortage{}) {
				t.Errorf("the line of %v: %v", key, l)
			}
		}
		if free := f.free(); free != "bde" {
			t.Errorf("free after a refusal: %q", free)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.quantities("a0 b10 c7 d10 e10")
		_, err = rowlock.Reserve(t.Context(), begin(), f.stock, []line{{"a", 1}})
		if !errors.Is(err, rowlock.ErrShort) || errors.Is(err, rowlock.ErrMissing) {
			t.Errorf("%v", err)
		}
		if left, err := rowlock.Reserve(t.Context(), begin(), f.stock, []line{}); left.Len() > 0 || err != nil {
			t.Errorf("without lines: %v %v", left, err)
		}
	})
}

// quantities checks the committed quantities.
func (f fixture) quantities(want string) {
	f.t.Helper()
	if got := value[string](f, f.pool, `SELECT string_agg("the sku" || "qty""left", ' ' ORDER BY "the sku", warehouse) FROM STOCK`); got != want {
		f.t.Errorf("stock: %s, want %s", got, want)
	}
}

func TestRestockUndoesReserve(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql(`UPDATE STOCK SET "qty""left" = NULL WHERE "the sku" = 'e'`)
		tx := begin()
		there, err := rowlock.Restock(t.Context(), tx, f.stock, []line{{"e", 4}, {"b", 1}})
		if err != nil || !reflect.DeepEqual(values(there), []rowlock.Decimal{"4", "11"}) {
			t.Errorf("%v %v", there, err)
		}
		var missing *rowlock.MissingError
		_, err = rowlock.Restock(t.Context(), tx, f.stock, []line{{"a", 4}, {"x", 1}})
		if !errors.As(err, &missing) || !reflect.DeepEqual(missing.Keys, []any{"x"}) || errors.Is(err, rowlock.ErrShort) {
			t.Errorf("%v", err)
		}
		_, err = rowlock.Restock(t.Context(), tx, f.stock, []line{{"a", math.MaxInt32}})
		if !errors.Is(err, rowlock.ErrRange) {
			t.Errorf("an overflow: %v", err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.quantities("a10 b11 c10 d10 e4")
	})
}

func TestReserveComparesTheLockedRow(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		holder := begin()
		if _, err := rowlock.Reserve(t.Context(), holder, f.stock, []line{{"a", 6}, {"b", 3}}); err != nil {
			t.Fatal(err)
		}
		tx := begin()
		done := later(func() error {
			_, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", 7}, {"a", 5}})
			return err
		})
		f.waiting(1)
		if err := holder.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		var short *rowlock.ShortError
		if err := <-done; !errors.As(err, &short) || !reflect.DeepEqual(short.Lines, []rowlock.Shortage{{Key: "a", Wanted: "5", Available: "4"}}) {
			t.Errorf("%v", err)
		}
		left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", 7}, {"a", 4}})
		if err != nil || !reflect.DeepEqual(values(left), []rowlock.Decimal{"0", "0"}) {
			t.Errorf("%v %v", left, err)
		}
	})
}

func TestReserveHonorsWaitOptions(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		holder := f.begin()
		f.in(holder, `SELECT FROM STOCK WHERE "the sku" = 'b' FOR UPDATE`)
		tx := begin()
		_, busy := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}, {"b", 1}}, rowlock.NoWait())
		_, late := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}, {"b", 1}}, rowlock.WithTimeout(20*time.Millisecond))
		if !errors.Is(busy, rowlock.ErrNotAcquired) || errors.Is(busy, rowlock.ErrTimeout) || !errors.Is(late, rowlock.ErrTimeout) {
			t.Errorf("%v, %v", busy, late)
		}
		_ = holder.Rollback(t.Context())
		f.usable(tx, "0")
	})
}

func TestReserveInOneWarehouse(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		f.sql(`ALTER TABLE STOCK DROP CONSTRAINT "St ock's_pkey", ADD PRIMARY KEY ("the sku", warehouse)`)
		f.sql(`INSERT INTO STOCK VALUES ('a', 20, 2), ('b', 20, 2)`)
		tx := begin()
		left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 15}}, rowlock.Where("warehouse", rowlock.Equal, 2))
		if n, _ := left.Get("a"); err != nil || n != "5" {
			t.Errorf("%v %v", left, err)
		}
		for what, err := range map[string]error{
			"two rows for one line":   second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}})),
			"two rows for two lines":  second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", 1}, {"x", 1}})),
			"two rows for one key":    second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"b"})),
			"two rows for two keys":   second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"b", "x"})),
			"two rows and no missing": second(rowlock.ForUpdate[item](t.Context(), tx, f.stock.Table, []string{"b", "x"}, rowlock.AllowMissing())),
		} {
			if !errors.Is(err, rowlock.ErrInvalidOption) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.quantities("a10 a5 b10 b20 c10 d10 e10")
	})
}

func second[T any](_ T, err error) error { return err }

// TestQuantitiesAreExact for every column type, beyond 64 bits, and never rounded.
func TestQuantitiesAreExact(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		type decimals = []rowlock.Line[string, rowlock.Decimal]
		for typ, tc := range map[string]struct {
			start, take, left rowlock.Decimal
			err               error
		}{
			"smallint":         {"32767", "32767", "0", nil},
			"integer":          {"5", "99999999999", "", rowlock.ErrShort},
			"bigint":           {"9223372036854775807", "9223372036854775806", "1", nil},
			"bigint ":          {"5", "18446744073709551616", "", rowlock.ErrShort},
			"numeric":          {"0.3", "0.1", "0.2", nil},
			"numeric(30)":      {"123456789012345678901234567890", "123456789012345678901234567889", "1", nil},
			"numeric(10,2)":    {"2.50", "1.25", "1.25", nil},
			"numeric(10, 2)":   {"2.50", "0.001", "", rowlock.ErrInvalidOption}, // would be rounded
			"int":              {"2", "0.5", "", rowlock.ErrInvalidOption},
			"double precision": {"2.5", "0.25", "2.25", nil},
		} {
			tx := begin()
			stock := rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"q " + typ}, Key: "k"}, Quantity: "q"}
			f.in(tx, "CREATE TEMP TABLE "+stock.String()+" (k text, q "+typ+") ON COMMIT DROP")
			f.in(tx, "INSERT INTO "+stock.String()+" VALUES ('a', $1::text::"+typ+")", string(tc.start))
			left, err := rowlock.Reserve(t.Context(), tx, stock, decimals{{"a", tc.take}})
			if !errors.Is(err, tc.err) || err == nil && values(left)[0] != tc.left {
				t.Errorf("%s: %v %v", typ, left, err)
			}
			if tc.err != nil {
				if q := value[string](f, tx, "SELECT q::text FROM "+stock.String()); q != string(tc.start) {
					t.Errorf("%s: %s became %s", typ, tc.start, q)
				}
			}
			_ = tx.Rollback(t.Context())
		}
		type sku string
		type count uint64
		if _, err := rowlock.Reserve(t.Context(), begin(), f.stock, []rowlock.Line[sku, count]{{"a", math.MaxUint64}}); !errors.Is(err, rowlock.ErrShort) {
			t.Errorf("2^64-1: %v", err)
		}
	})
}

func TestDecimalInt64(t *testing.T) {
	t.Parallel()
	for d, want := range map[rowlock.Decimal]int64{"12": 12, "-3.00": -3, "9223372036854775807": math.MaxInt64} {
		if n, err := d.Int64(); n != want || err != nil {
			t.Errorf("%s: %d %v", d, n, err)
		}
	}
	for _, d := range []rowlock.Decimal{"1.5", "9223372036854775808", "", "NaN", "x"} {
		if n, err := d.Int64(); !errors.Is(err, rowlock.ErrRange) {
			t.Errorf("%s: %d %v", d, n, err)
		}
	}
}
