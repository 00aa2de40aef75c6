package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestRowsEndAsThoseOfPgx: by Close, and by a Scan that fails, whose error they keep.
func TestRowsEndAsThoseOfPgx(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, ours := f.begin()
	for name, tx := range map[string]querier{"sqltx": ours, "pgx": f.pgx()} {
		var n int
		closed, err := tx.Query(t.Context(), "SELECT generate_series(1, 3)")
		if err != nil {
			t.Fatal(err)
		}
		if !closed.Next() {
			t.Errorf("%s: no row", name)
		}
		closed.Close()
		if closed.Next() || closed.Err() != nil {
			t.Errorf("%s: after Close there is a row, or an error: %v", name, closed.Err())
		}
		failed, err := tx.Query(t.Context(), "SELECT v FROM (VALUES (1, 'x'), (2, '7')) v (n, v) ORDER BY n")
		if err != nil {
			t.Fatal(err)
		}
		first := failed.Next()
		wrong := failed.Scan(&n)
		if !first || wrong == nil || !errors.Is(failed.Err(), wrong) || failed.Next() {
			t.Errorf("%s: after a Scan that failed with %v there is a row, or its error is %v", name, wrong, failed.Err())
		}
		failed.Close()
	}
	row := ours.QueryRow(t.Context(), "SELECT generate_series(1, 3)")
	var n int
	if err := row.Scan(&n); err != nil || n != 1 {
		t.Errorf("%d %v", n, err)
	}
	if err := row.Scan(&n); err == nil {
		t.Errorf("a row was scanned twice, the second time it was %d", n)
	}
}

// TestUnregisteredTypesKeepTheirNumber, and NULL is nothing, not an empty text.
func TestUnregisteredTypesKeepTheirNumber(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, ours := f.begin()
	const statement = "SELECT '16/B374D848'::pg_lsn, 'pg_class'::regclass, NULL::pg_lsn"
	read := func(q querier) (oids []uint32, values []any) {
		found, err := q.Query(t.Context(), statement)
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for _, d := range found.FieldDescriptions() {
			oids = append(oids, d.DataTypeOID)
		}
		found.Next()
		if values, err = found.Values(); err != nil {
			t.Fatal(err)
		}
		return oids, values
	}
	oids, values := read(ours)
	want, wantValues := read(f.pgx())
	for i := range want {
		if oids[i] != want[i] || values[i] != wantValues[i] {
			t.Errorf("column %d: type %d, value %v; pgx has %d, %v", i, oids[i], values[i], want[i], wantValues[i])
		}
	}
	if values[2] != nil {
		t.Errorf("NULL is %q", values[2])
	}
}

// TestRegisteredTypes are known by their names, small or capital.
func TestRegisteredTypes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	schema := pgx.Identifier{pgtest.SchemaName(t)}.Sanitize()
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+schema+"; CREATE TYPE "+schema+".place AS (shelf int, box text)"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"place", "PLACE"} {
		db := stdlib.OpenDB(*typed(pool, schema).ConnConfig, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
			place, err := conn.LoadType(ctx, name)
			if err == nil {
				conn.TypeMap().RegisterType(place)
			}
			return err
		}))
		std, err := db.BeginTx(t.Context(), &sql.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var at struct {
			Shelf int
			Box   string
		}
		if err := sqltx.Wrap(std).QueryRow(t.Context(), "SELECT ROW(3, 'x')::place").Scan(&at); err != nil || at.Shelf != 3 || at.Box != "x" {
			t.Errorf("%s: %v %v", name, at, err)
		}
		_ = std.Rollback()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

func typed(pool *pgxpool.Pool, schema string) *pgxpool.Config {
	c := pool.Config()
	c.ConnConfig.RuntimeParams["search_path"] = schema
	return c
}

// TestModesArePassedOn: the simple protocol takes two statements at once.
func TestModesArePassedOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	if _, err := tx.Exec(t.Context(), "CREATE TEMP TABLE two (n int) ON COMMIT DROP; INSERT INTO two VALUES ($1)", pgx.QueryExecModeSimpleProtocol, 7); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, tx, "SELECT n FROM two"); n != 7 {
		t.Error(n)
	}
}
