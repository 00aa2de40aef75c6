package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// everyType selects a row with a value of each type, two of which pgx does not know, and a row of NULLs.
const everyType = `SELECT * FROM (VALUES
	(1, true, 'x'::text, 'v'::varchar, 'c'::"char", 2::int2, 3::int4, -4::int8, 1.5::float4, 'NaN'::float8, 12345678901234567890.123::numeric, 'NaN'::numeric,
	 '\x00ff'::bytea, '2024-02-29'::date, 'infinity'::date, '2024-02-29 12:00:01.000001'::timestamp, '-infinity'::timestamp,
	 '2024-02-29 12:00:01.000001+00'::timestamptz, 'infinity'::timestamptz, '12:30'::time, '1 mon 2 days 03:04:05'::interval,
	 '{"a": [1, null]}'::json, '{"b": 2}'::jsonb, 'c56a4180-65aa-42ec-a945-5fd21dec0538'::uuid, '10.0.0.1/8'::inet, '{1,NULL,3}'::int[], '{"a,b",NULL}'::text[],
	 '[1,5)'::int4range, 16::oid, '7'::xid, '(1,2)'::point, 'with''quote'::name, B'101'::varbit, '16/B374D848'::pg_lsn, 'pg_class'::regclass),
	(2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
	 null, null, null, null, null, null, null, null, null, null, null, null, null, null)) AS v ORDER BY 1`

// TestRowsAreThoseOfPgx reads the same rows both ways.
func TestRowsAreThoseOfPgx(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	want := readAll(t, f.pgx())
	got := readAll(t, tx)
	if !reflect.DeepEqual(want.names, got.names) || !reflect.DeepEqual(want.oids, got.oids) {
		t.Errorf("fields: %v %v, pgx has %v %v", got.names, got.oids, want.names, want.oids)
	}
	if len(got.values) != 2 || len(want.values) != 2 {
		t.Fatalf("%d and %d rows", len(got.values), len(want.values))
	}
	for i := range want.values {
		for j := range want.values[i] {
			if w, g := fmt.Sprintf("%T %[1]v", want.values[i][j]), fmt.Sprintf("%T %[1]v", got.values[i][j]); w != g {
				t.Errorf("row %d, column %s: %s, pgx has %s", i, want.names[j], g, w)
			}
		}
	}
}

type table struct {
	names  []string
	oids   []uint32
	values [][]any
}

func readAll(t *testing.T, q querier) (all table) {
	t.Helper()
	found, err := q.Query(t.Context(), everyType)
	ok(t, err)
	defer found.Close()
	for _, d := range found.FieldDescriptions() {
		all.names = append(all.names, d.Name)
		all.oids = append(all.oids, d.DataTypeOID)
	}
	for found.Next() {
		v, err := found.Values()
		ok(t, err)
		all.values = append(all.values, v)
		if len(found.RawValues()) != len(v) {
			t.Errorf("%d raw values of %d", len(found.RawValues()), len(v))
		}
	}
	ok(t, found.Err())
	return all
}

// kinds has fields that database/sql alone can't scan into.
type kinds struct {
	ID      int32
	Tags    []string
	Numbers []*int64 `db:"nums"`
	Doc     struct{ B int }
	Price   pgtype.Numeric
	Lasts   time.Duration
	At      time.Time
	Ends    pgtype.Timestamptz
	UUID    [16]byte
	Nothing *string
	Small   float32
}

func TestRowsCollectIntoStructs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	const statement = `SELECT 7 AS id, '{a,b}'::text[] AS tags, '{1,NULL}'::int8[] AS nums, '{"b": 2}'::jsonb AS doc, 1.25::numeric AS price,
		'90 s'::interval AS lasts, '2024-02-29 12:00:00.5+00'::timestamptz AS at, 'infinity'::timestamptz AS ends,
		'c56a4180-65aa-42ec-a945-5fd21dec0538'::uuid AS uuid, NULL::text AS nothing, 0.1::float4 AS small`
	collect := func(q querier) kinds {
		found, err := q.Query(t.Context(), statement)
		ok(t, err)
		k, err := pgx.CollectExactlyOneRow(found, pgx.RowToStructByName[kinds])
		ok(t, err)
		return k
	}
	got, want := collect(tx), collect(f.pgx())
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, pgx has %+v", got, want)
	}
	if got.Doc.B != 2 || got.Lasts != 90*time.Second || len(got.Tags) != 2 || got.Ends.InfinityModifier != pgtype.Infinity {
		t.Errorf("%+v", got)
	}
}

func TestRowsReturnTheirErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	f.exec(tx, "SAVEPOINT s")
	var n int
	if err := tx.QueryRow(t.Context(), "SELECT 1 WHERE false").Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if err := tx.QueryRow(t.Context(), "SELECT 'x'").Scan(&n); err == nil {
		t.Error("a text went into an int")
	}
	if err := tx.QueryRow(t.Context(), "SELECT 1, 2").Scan(&n); err == nil {
		t.Error("two columns went into one")
	}
	var pg *pgconn.PgError
	found, err := tx.Query(t.Context(), "SELECT 1 / (n - 3) FROM generate_series(1, 5) n")
	if !errors.As(err, &pg) || pg.Code != "22012" || found == nil || !errors.As(found.Err(), &pg) || found.Next() {
		t.Errorf("an error in the third row: %v", err)
	}
	f.exec(tx, "ROLLBACK TO s")
	if err := tx.QueryRow(t.Context(), "SELECT nonsense").Scan(&n); !errors.As(err, &pg) || pg.Code != "42703" {
		t.Errorf("no column: %v", err)
	}
	f.exec(tx, "ROLLBACK TO s")

	found, err = tx.Query(t.Context(), "SELECT n FROM generate_series(1, 2) n")
	ok(t, err)
	if err := found.Scan(&n); err == nil {
		t.Error("Scan before Next")
	}
	if _, err := found.Values(); err == nil {
		t.Error("Values before Next")
	}
	if two := value[int](t, tx, "SELECT 2"); two != 2 { // beside open rows
		t.Error(two)
	}
	for i := 1; i <= 2; i++ {
		if !found.Next() || found.Scan(&n) != nil || n != i {
			t.Fatalf("row %d: %d %v", i, n, found.Err())
		}
	}
	if found.Next() || found.Scan(&n) == nil || found.Err() != nil || found.CommandTag().RowsAffected() != 2 || found.RawValues() != nil {
		t.Errorf("after the last row: %v %v", found.Err(), found.CommandTag())
	}
	if found.Conn() != nil || found.TypeMap() == nil {
		t.Error("a connection, or no type map")
	}
}

// TestRowsGoWholeToARowScanner: pgx v5.12 can scan a whole row into one value.
func TestRowsGoWholeToARowScanner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, tx := f.begin()
	var p pair
	if err := tx.QueryRow(t.Context(), "SELECT 1, 'b'").Scan(&p); err != nil || p != (pair{1, "b"}) {
		t.Errorf("%v %v", p, err)
	}
	if v := value[float64](t, tx, "SELECT 'NaN'::float8"); !math.IsNaN(v) {
		t.Error(v)
	}
}

type pair struct {
	a int
	b string
}

func (p *pair) ScanRow(r pgx.Rows) error { return r.Scan(&p.a, &p.b) }

// TestRowsEndAsThoseOfPgx: by Close, and by a failed Scan, whose error they keep.
func TestRowsEndAsThoseOfPgx(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, ours := f.begin()
	for name, tx := range map[string]querier{"sqltx": ours, "pgx": f.pgx()} {
		var n int
		closed, err := tx.Query(t.Context(), "SELECT generate_series(1, 3)")
		ok(t, err)
		if !closed.Next() {
			t.Errorf("%s: no row", name)
		}
		closed.Close()
		if closed.Next() || closed.Err() != nil {
			t.Errorf("%s: after Close there is a row, or an error: %v", name, closed.Err())
		}
		failed, err := tx.Query(t.Context(), "SELECT v FROM (VALUES (1, 'x'), (2, '7')) v (n, v) ORDER BY n")
		ok(t, err)
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

// TestRegisteredTypes are recognized by their names, in lower or upper case.
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
		ok(t, err)
		var at struct {
			Shelf int
			Box   string
		}
		if err := sqltx.Wrap(std).QueryRow(t.Context(), "SELECT ROW(3, 'x')::place").Scan(&at); err != nil || at.Shelf != 3 || at.Box != "x" {
			t.Errorf("%s: %v %v", name, at, err)
		}
		_ = std.Rollback()
		ok(t, db.Close())
	}
}

func typed(pool *pgxpool.Pool, schema string) *pgxpool.Config {
	c := pool.Config()
	c.ConnConfig.RuntimeParams["search_path"] = schema
	return c
}

// TestQueryExecModesArePassedOn: the simple protocol accepts two statements at once.
func TestQueryExecModesArePassedOn(t *testing.T) {
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
