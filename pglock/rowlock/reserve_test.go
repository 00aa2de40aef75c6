package rowlock_test

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

func TestReserveTakesAllOrNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		tx := begin()
		left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"c", "3"}, {"a", "10"}})
		if err != nil || !maps.Equal(left, map[string]rowlock.Decimal{"c": "7", "a": "0"}) {
			t.Fatalf("%v %v", left, err)
		}
		if free := f.free(); free != "bde" {
			t.Errorf("free: %q", free)
		}
		f.in(tx, "SAVEPOINT one")
		_, err = rowlock.Reserve(t.Context(), tx, f.stock, []line{{"d", "11"}, {"x", "1"}, {"b", "10"}, {"a", "2"}})
		var short *rowlock.ShortError
		want := []rowlock.Shortage{
			{Key: "d", Wanted: "11", Available: "10"}, {Key: "x", Wanted: "1", Available: "0", Missing: true}, {Key: "a", Wanted: "2", Available: "0"},
		}
		if !errors.As(err, &short) || !reflect.DeepEqual(short.Lines, want) || short.Table != f.stock.Name.Sanitize() ||
			!errors.Is(err, rowlock.ErrShort) || errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		if free := f.free(); free != "bde" {
			t.Errorf("free after a refusal: %q", free)
		}
		ok(t, tx.Commit(t.Context()))
		f.quantities("a0 b10 c7 d10 e10")
		_, err = rowlock.Reserve(t.Context(), begin(), f.stock, []line{{"a", "1"}})
		if !errors.Is(err, rowlock.ErrShort) {
			t.Errorf("%v", err)
		}
		if left, err := rowlock.Reserve(t.Context(), begin(), f.stock, []line{}); len(left) > 0 || err != nil {
			t.Errorf("without lines: %v %v", left, err)
		}
	})
}

func TestRestockUndoesReserve(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		f.sql(`UPDATE STOCK SET "qty""left" = NULL WHERE "the sku" = 'e'`)
		tx := begin()
		there, err := rowlock.Restock(t.Context(), tx, f.stock, []line{{"e", "4"}, {"b", "1"}})
		if err != nil || !maps.Equal(there, map[string]rowlock.Decimal{"e": "4", "b": "11"}) {
			t.Errorf("%v %v", there, err)
		}
		var missing *rowlock.MissingError
		_, err = rowlock.Restock(t.Context(), tx, f.stock, []line{{"a", "4"}, {"x", "1"}})
		if !errors.As(err, &missing) || !reflect.DeepEqual(missing.Keys, []any{"x"}) || errors.Is(err, rowlock.ErrShort) {
			t.Errorf("%v", err)
		}
		_, err = rowlock.Restock(t.Context(), tx, f.stock, []line{rowlock.Take("a", math.MaxInt32)})
		if !errors.Is(err, rowlock.ErrRange) {
			t.Errorf("an overflow: %v", err)
		}
		ok(t, tx.Commit(t.Context()))
		f.quantities("a10 b11 c10 d10 e4")
	})
}

func TestReserveComparesTheLockedRow(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		holder := begin()
		if _, err := rowlock.Reserve(t.Context(), holder, f.stock, []line{{"a", "6"}, {"b", "3"}}); err != nil {
			t.Fatal(err)
		}
		tx := begin()
		done := later(func() error {
			_, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "7"}, {"a", "5"}})
			return err
		})
		f.waiting(1)
		ok(t, holder.Commit(t.Context()))
		var short *rowlock.ShortError
		if err := <-done; !errors.As(err, &short) || !reflect.DeepEqual(short.Lines, []rowlock.Shortage{{Key: "a", Wanted: "5", Available: "4"}}) {
			t.Errorf("%v", err)
		}
		left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "7"}, {"a", "4"}})
		if err != nil || !maps.Equal(left, map[string]rowlock.Decimal{"b": "0", "a": "0"}) {
			t.Errorf("%v %v", left, err)
		}
	})
}

// TestQuantitiesAreExact for every column type, beyond 64 bits, and never rounded.
func TestQuantitiesAreExact(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
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
			"numeric(10, 2)":   {"2.50", "0.001", "", advisory.ErrInvalidOption}, // would be rounded
			"int":              {"2", "0.5", "", advisory.ErrInvalidOption},
			"double precision": {"2.5", "0.25", "2.25", nil},
		} {
			tx := begin()
			stock := rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"q " + typ}, Key: "k"}, Quantity: "q"}
			f.in(tx, "CREATE TEMP TABLE "+stock.Name.Sanitize()+" (k text, q "+typ+") ON COMMIT DROP")
			f.in(tx, "INSERT INTO "+stock.Name.Sanitize()+" VALUES ('a', $1::text::"+typ+")", string(tc.start))
			left, err := rowlock.Reserve(t.Context(), tx, stock, []line{{"a", tc.take}})
			if !errors.Is(err, tc.err) || err == nil && left["a"] != tc.left {
				t.Errorf("%s: %v %v", typ, left, err)
			}
			if tc.err != nil {
				if q := value[string](f, tx, "SELECT q::text FROM "+stock.Name.Sanitize()); q != string(tc.start) {
					t.Errorf("%s: %s became %s", typ, tc.start, q)
				}
			}
			_ = tx.Rollback(t.Context())
		}
		type sku string
		type count uint64
		if _, err := rowlock.Reserve(t.Context(), begin(), f.stock, rowlock.Lines(rowlock.Take[sku, count]("a", math.MaxUint64))); !errors.Is(err, rowlock.ErrShort) {
			t.Errorf("2^64-1: %v", err)
		}
	})
}

// TestRowThatATriggerProtectsIsAnError: then nothing is reserved, not even a part.
func TestRowThatATriggerProtectsIsAnError(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	in := f.stock.Name[:1].Sanitize()
	f.sql("CREATE FUNCTION " + in + `.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW."the sku" = ''b'' THEN RETURN NULL; END IF; RETURN NEW; END'`)
	f.sql("CREATE TRIGGER keep BEFORE UPDATE ON STOCK FOR EACH ROW EXECUTE FUNCTION " + in + ".keep()")
	tx := f.begin()
	left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", "1"}, {"b", "1"}})
	if err == nil || len(left) > 0 || errors.Is(err, rowlock.ErrShort) {
		t.Errorf("%v %v", left, err)
	}
	ok(t, tx.Commit(t.Context()))
	f.quantities("a10 b10 c10 d10 e10")
}
