package sqltx_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// everyType has a value of each kind in a row, and a row of NULLs.
const everyType = `SELECT * FROM (VALUES
	(1, true, 'x'::text, 'v'::varchar, 'c'::"char", 2::int2, 3::int4, -4::int8, 1.5::float4, 'NaN'::float8, 12345678901234567890.123::numeric, 'NaN'::numeric,
	 '\x00ff'::bytea, '2024-02-29'::date, 'infinity'::date, '2024-02-29 12:00:01.000001'::timestamp, '-infinity'::timestamp,
	 '2024-02-29 12:00:01.000001+00'::timestamptz, 'infinity'::timestamptz, '12:30'::time, '1 mon 2 days 03:04:05'::interval,
	 '{"a": [1, null]}'::json, '{"b": 2}'::jsonb, 'c56a4180-65aa-42ec-a945-5fd21dec0538'::uuid, '10.0.0.1/8'::inet, '{1,NULL,3}'::int[], '{"a,b",NULL}'::text[],
	 '[1,5)'::int4range, 16::oid, '7'::xid, '(1,2)'::point, 'with''quote'::name, B'101'::varbit),
	(2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
	 null, null, null, null, null, null, null, null, null, null, null, null)) AS v ORDER BY 1`

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
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for _, d := range found.FieldDescriptions() {
		all.names = append(all.names, d.Name)
		all.oids = append(all.oids, d.DataTypeOID)
	}
	for found.Next() {
		v, err := found.Values()
		if err != nil {
			t.Fatal(err)
		}
		all.values = append(all.values, v)
		if len(found.RawValues()) != len(v) {
			t.Errorf("%d raw values of %d", len(found.RawValues()), len(v))
		}
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// kinds is what database/sql alone could not scan into.
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
		if err != nil {
			t.Fatal(err)
		}
		k, err := pgx.CollectExactlyOneRow(found, pgx.RowToStructByName[kinds])
		if err != nil {
			t.Fatal(err)
		}
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

func TestRowsTellTheirErrors(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestRowsGoWholeToARowScanner: pgx v5.12's way to scan a row at once.
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
