package fencing_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

func TestNamedBy(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", `("Tenant {" text, "no" int, v int)`)
	want(t, "braces", fencing.Protect(t.Context(), g.pool, table, fencing.NamedBy("{Tenant {}"), fencing.WithSchema(g.schema)), fencing.ErrInvalidOption)
	g.sql("ALTER TABLE " + table + ` RENAME "Tenant {" TO "Ten ant's"`)
	g.protect(table, fencing.NamedBy(`it's %s "{Ten ant's}"/{no}`))
	f := g.grant(`it's %s "ünïcödé"/7`, time.Minute)
	want(t, "its row", g.as(f, "INSERT INTO "+table+" VALUES ('ünïcödé', 7, 0)", "UPDATE "+table+" SET v = 1"), nil)
	want(t, "another", g.as(f, "INSERT INTO "+table+" VALUES ('ünïcödé', 8, 0)"), fencing.ErrOtherLock)
	want(t, "another by case", g.as(f, "INSERT INTO "+table+" VALUES ('ÜNÏCÖDÉ', 7, 0)"), fencing.ErrOtherLock)
	want(t, "no lock", g.as(f, "INSERT INTO "+table+" VALUES (NULL, 7, 0)"), fencing.ErrOtherLock)
	want(t, "unnamed", g.as(f, "UPDATE "+table+` SET "no" = NULL`), fencing.ErrOtherLock)
	want(t, "TRUNCATE", g.as(f, "TRUNCATE "+table), fencing.ErrOtherLock)
	want(t, "without", g.unbound("TRUNCATE "+table), fencing.ErrUnfenced)

	// If the collation finds two names equal that differ in case, they are still two locks.
	g.sql("CREATE COLLATION pglock.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	caseless := g.table("caseless", "(id text COLLATE pglock.caseless)")
	g.sql("ALTER TABLE " + caseless + " ALTER id TYPE text COLLATE " + schema.Quote(g.schema) + ".caseless")
	g.protect(caseless, fencing.NamedBy("{id}"))
	lower := g.grant("lower", time.Minute)
	want(t, "same", g.as(lower, "INSERT INTO "+caseless+" VALUES ('lower')"), nil)
	want(t, "equal by collation alone", g.as(lower, "INSERT INTO "+caseless+" VALUES ('LOWER')"), fencing.ErrOtherLock)
	for _, both := range []string{"('lower'), ('LOWER')", "('LOWER'), ('lower')"} {
		want(t, "equal by collation, in one statement", g.as(lower, "INSERT INTO "+caseless+" VALUES "+both), fencing.ErrOtherLock)
	}
}

// TestP53_NamedByTakesNamesThatDoNotDependOnTheSession: columns of other types are refused.
func TestP53_NamedByTakesNamesThatDoNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	here := schema.Quote(g.schema)
	g.sql("CREATE TYPE pglock.color AS ENUM ('red'); CREATE TYPE pglock.pair AS (a date, b date)")
	g.sql("CREATE DOMAIN pglock.day AS date; CREATE DOMAIN pglock.inner_no AS int; CREATE DOMAIN pglock.no AS pglock.inner_no")
	for i, kind := range []string{
		"date", "timestamp", "timestamptz", "time", "timetz", "interval", "real", "double precision", "money", "bytea", "boolean", "char(3)",
		"jsonb", "int[]", "int4range", "inet", here + ".day", here + ".pair", here + ".color",
	} {
		table := g.table(sprintf("refused %d", i), "(id "+kind+")")
		want(t, kind, fencing.Protect(t.Context(), g.pool, table, fencing.NamedBy("n:{id}"), fencing.WithSchema(g.schema)), fencing.ErrColumn)
	}
	color := g.table("of a color", "(id "+here+".color)")
	g.sql("INSERT INTO " + color + " VALUES ('red'); ALTER TYPE pglock.color RENAME VALUE 'red' TO 'blue'")
	g.holds(color, "(blue)") // control: the owner of an enum changes the text of rows without a write
	for kind, text := range map[string]string{
		"smallint": "-7", "integer": "7", "bigint": "9223372036854775807", "numeric": "1.50", "text": "ä b", "varchar(9)": "x", "name": "y",
		"uuid": "6b4e0c3a-0000-4000-8000-000000000001", here + ".no": "5",
	} {
		table := g.table("taken "+text, "(id "+kind+")")
		g.protect(table, fencing.NamedBy("n:{id}"))
		f, other := g.grant("n:"+text, time.Hour), g.grant("n:other", time.Hour)
		insert := "INSERT INTO " + table + " VALUES (" + literal(text) + ")"
		odd := []string{"SET LOCAL DateStyle = 'German'", "SET LOCAL IntervalStyle = 'sql_standard'", "SET LOCAL extra_float_digits = -5", "SET LOCAL bytea_output = 'escape'"}
		want(t, kind, g.as(f, append(odd, insert)...), nil)
		want(t, kind+" by another", g.as(other, insert), fencing.ErrOtherLock)
	}
}

// TestSwappedColumnsNameOneLock: after two columns have changed their names no lock's holder can
// write until the table is protected again; then the row belongs to the lock of the new name.
func TestSwappedColumnsNameOneLock(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	for template, names := range map[string][2]string{"n{a}": {"n1", "n2"}, "it's \\ {a}/{b}": {"it's \\ 1/2", "it's \\ 2/1"}} {
		table := g.table("t "+names[0], `(a int, b int, v int)`)
		g.protect(table, fencing.NamedBy(template))
		one, two := g.grant(names[0], time.Hour), g.grant(names[1], time.Hour)
		want(t, "before", g.as(one, "INSERT INTO "+table+" VALUES (1, 2, 0)"), nil)
		for _, rename := range []string{"a TO c", "b TO a", "c TO b"} {
			g.sql("ALTER TABLE " + table + " RENAME " + rename)
		}
		for _, f := range []fencing.Fence{one, two} {
			refused(t, "before it is protected again", g.as(f, "UPDATE "+table+" SET v = v + 1"))
		}
		g.protect(table, fencing.NamedBy(template))
		for range 2 { // the second time the row has its token
			want(t, "the lock of the new name", g.as(two, "UPDATE "+table+" SET v = v + 1"), nil)
			want(t, "the lock of the old name", g.as(one, "UPDATE "+table+" SET v = v + 1"), fencing.ErrOtherLock)
		}
		g.holds(table, "(1,2,2,%d)", two.Token)
	}
}
