package rowlock_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestFaultOfATriggerIsTheServersError: the table and its columns exist; what is missing is used by
// the trigger.
func TestFaultOfATriggerIsTheServersError(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		in := f.stock.Name[:1].Sanitize()
		f.sql("CREATE FUNCTION " + in + ".lost() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO nowhere VALUES (1); RETURN NEW; END'")
		f.sql("CREATE TRIGGER lost BEFORE UPDATE ON STOCK FOR EACH ROW EXECUTE FUNCTION " + in + ".lost()")
		tx := begin()
		var pg *pgconn.PgError
		err := second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}}))
		if !errors.As(err, &pg) || pg.Code != "42P01" || errors.Is(err, rowlock.ErrTable) {
			t.Errorf("%v", err)
		}
		f.usable(tx, "0")
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
	left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", 1}, {"b", 1}})
	if err == nil || left.Len() > 0 || errors.Is(err, rowlock.ErrShort) {
		t.Errorf("%v %v", left, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	f.quantities("a10 b10 c10 d10 e10")
}

// TestEqualKeysThatLookDifferent: 1.0 and 1.00 are the same number, so the column is not unique.
func TestEqualKeysThatLookDifferent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	f.in(tx, "CREATE TEMP TABLE weights (w numeric) ON COMMIT DROP")
	f.in(tx, "INSERT INTO weights VALUES (1.0), (1.00)")
	weights := rowlock.Table{Name: pgx.Identifier{"weights"}, Key: "w"}
	for _, opts := range [][]rowlock.LockOption{nil, {rowlock.AllowMissing()}, {rowlock.SkipLocked()}} {
		rows, err := rowlock.ForUpdate[struct{ W string }](t.Context(), tx, weights, []string{"1"}, opts...)
		if !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("%v %v", rows, err)
		}
	}
}
