package fencing_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

// definition returns what the catalog has about a table and its partitions: columns, triggers,
// constraints, indexes, rights, options, and the objects of the lock schema.
func (g fixture) definition(table string) string {
	g.t.Helper()
	return value[string](g, `
		WITH rels AS (SELECT $1::text::regclass AS oid UNION SELECT relid FROM pg_partition_tree($1::text::regclass))
		SELECT string_agg(line, E'\n' ORDER BY line) FROM (
			SELECT format('%s %s %s %s %s', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
			              pg_get_expr(d.adbin, d.adrelid)) AS line
			FROM rels JOIN pg_attribute a ON a.attrelid = rels.oid AND a.attnum > 0 AND NOT a.attisdropped
			LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
			UNION ALL SELECT pg_get_triggerdef(t.oid) FROM rels JOIN pg_trigger t ON t.tgrelid = rels.oid
			UNION ALL SELECT pg_get_constraintdef(c.oid) FROM rels JOIN pg_constraint c ON c.conrelid = rels.oid
			UNION ALL SELECT pg_get_indexdef(i.indexrelid) FROM rels JOIN pg_index i ON i.indrelid = rels.oid
			UNION ALL SELECT format('%s %s %s', c.oid::regclass, c.relacl, c.reloptions) FROM rels JOIN pg_class c USING (oid)
			UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = $2::text::regnamespace
		) AS all_of_it (line)`, table, schema.Quote(g.schema))
}

// TestUnprotectRestoresTheTable according to the catalog.
func TestUnprotectRestoresTheTable(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("1", time.Hour)
	for name, tc := range map[string]struct {
		columns string
		opts    []fencing.Option
	}{
		"plain":       {columns, nil},
		"options":     {`(id int PRIMARY KEY, v int, "a 'b' ""c""" bigint NOT NULL DEFAULT 7)`, []fencing.Option{fencing.WithColumn(`a 'b' "c"`), fencing.Permissive()}},
		"named":       {columns, []fencing.Option{fencing.NamedBy("{id}"), fencing.WithColumn("x")}},
		"column kept": {"(id int PRIMARY KEY, v int, fence_token bigint)", nil},
		"partitioned": {"(id int PRIMARY KEY, v int) PARTITION BY RANGE (id)", nil},
	} {
		table := g.table(name, tc.columns)
		if name == "partitioned" {
			g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES FROM (0) TO (10)")
			g.sql("CREATE TABLE pglock.p2 PARTITION OF " + table + " FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
			g.sql("CREATE TABLE pglock.p3 PARTITION OF pglock.p2 FOR VALUES FROM (10) TO (20)")
		}
		before := g.definition(table)
		g.protect(table, tc.opts...)
		if g.definition(table) == before {
			t.Errorf("%s: Protect changed nothing", name)
		}
		want(t, name, g.as(f, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
		for range 2 { // the second does nothing
			want(t, name, fencing.Unprotect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), nil)
			if after := g.definition(table); after != before {
				t.Errorf("%s: before:\n%s\nafter:\n%s", name, before, after)
			}
		}
	}
}

// tool returns the output of one of PostgreSQL's programs. If none supports the server's version,
// it returns nothing, and that part of the test is skipped.
func (g fixture) tool(name string, args ...string) string {
	g.t.Helper()
	var program string
	if !pgtest.HaveTool(g.t, name, func() (err error) { program, err = testserver.Program(name); return err }) {
		return ""
	}
	cmd := exec.CommandContext(g.t.Context(), program, args...)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil && strings.Contains(problems.String(), "version mismatch") {
		pgtest.HaveTool(g.t, "a newer "+name, func() error { return errors.New(program + " is older than the server") })
		return ""
	}
	if err != nil {
		g.t.Fatalf("%v: %s", err, &problems)
	}
	return string(out)
}

// TestProtectRefuses tables, columns and options that it can't use.
func TestProtectRefuses(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	in := fencing.WithSchema(g.schema)
	q := schema.Quote(g.schema) + "."
	table := g.table("t", `(id int PRIMARY KEY, v int, other int, computed bigint GENERATED ALWAYS AS (id) STORED, counted bigint GENERATED ALWAYS AS IDENTITY)`)
	g.sql("CREATE VIEW pglock.v AS SELECT 1 AS id")
	g.sql("CREATE MATERIALIZED VIEW pglock.m AS SELECT 1 AS id")
	g.sql("CREATE SEQUENCE pglock.s")
	g.sql("CREATE TABLE pglock.parted (id int) PARTITION BY LIST (id)")
	g.sql("CREATE TABLE pglock.part PARTITION OF pglock.parted DEFAULT")
	g.sql("CREATE TABLE pglock.parent (id int)")
	g.sql("CREATE TABLE pglock.child () INHERITS (pglock.parent)")
	protected := g.table("protected", columns)
	g.protect(protected, fencing.NamedBy("n{id}"))
	before := g.definition(table)
	for name, tc := range map[string]struct {
		table string
		opts  []fencing.Option
		want  error
	}{
		"unknown":             {q + "never", nil, fencing.ErrNoTable},
		"unknown schema":      {"never.never", nil, fencing.ErrNoTable},
		"no name":             {"", nil, fencing.ErrNoTable},
		"no name of SQL":      {`"`, nil, fencing.ErrNoTable},
		"four parts":          {"a.b.c.d", nil, fencing.ErrNoTable},
		"statement":           {table + "; DROP TABLE " + table, nil, fencing.ErrNoTable},
		"view":                {q + "v", nil, fencing.ErrNoTable},
		"materialized view":   {q + "m", nil, fencing.ErrNoTable},
		"sequence":            {q + "s", nil, fencing.ErrNoTable},
		"index":               {q + "t_pkey", nil, fencing.ErrNoTable},
		"partition":           {q + "part", nil, fencing.ErrNoTable},
		"parent":              {q + "parent", nil, fencing.ErrNoTable},
		"child":               {q + "child", nil, fencing.ErrNoTable},
		"column's type":       {table, []fencing.Option{fencing.WithColumn("other")}, fencing.ErrColumn},
		"generated column":    {table, []fencing.Option{fencing.WithColumn("computed")}, fencing.ErrColumn},
		"identity column":     {table, []fencing.Option{fencing.WithColumn("counted")}, fencing.ErrColumn},
		"system column":       {table, []fencing.Option{fencing.WithColumn("xmin")}, fencing.ErrColumn},
		"no column":           {table, []fencing.Option{fencing.WithColumn("")}, fencing.ErrInvalidOption},
		"column too long":     {table, []fencing.Option{fencing.WithColumn(strings.Repeat("c", 64))}, fencing.ErrInvalidOption},
		"unknown name column": {table, []fencing.Option{fencing.NamedBy("n{never}")}, fencing.ErrColumn},
		"generated name":      {table, []fencing.Option{fencing.NamedBy("n{computed}")}, fencing.ErrColumn},
		"no name column":      {table, []fencing.Option{fencing.NamedBy("n")}, fencing.ErrInvalidOption},
		"empty name column":   {table, []fencing.Option{fencing.NamedBy("n{}")}, fencing.ErrInvalidOption},
		"open brace":          {table, []fencing.Option{fencing.NamedBy("{n{id}")}, fencing.ErrInvalidOption},
		"closing brace":       {table, []fencing.Option{fencing.NamedBy("{id}}")}, fencing.ErrInvalidOption},
		"columns in a row":    {table, []fencing.Option{fencing.NamedBy("{id}{v}")}, fencing.ErrInvalidOption},
		"empty template":      {table, []fencing.Option{fencing.NamedBy("")}, fencing.ErrInvalidOption},
		"nil":                 {table, []fencing.Option{nil}, fencing.ErrInvalidOption},
		"invalid schema":      {table, []fencing.Option{fencing.WithSchema("pg_x")}, fencing.ErrInvalidOption},
		"missing schema":      {table, []fencing.Option{fencing.WithSchema("no such schema")}, fencing.ErrSchemaMissing},
		"other column":        {protected, []fencing.Option{fencing.NamedBy("n{id}"), fencing.WithColumn("x")}, fencing.ErrProtected},
		"other mode":          {protected, []fencing.Option{fencing.NamedBy("n{id}"), fencing.Permissive()}, fencing.ErrProtected},
		"other names":         {protected, []fencing.Option{fencing.NamedBy("m{id}")}, fencing.ErrProtected},
		"any lock":            {protected, nil, fencing.ErrProtected},
		"as it is":            {protected, []fencing.Option{fencing.NamedBy("n{id}")}, nil},
	} {
		err := fencing.Protect(t.Context(), g.pool, tc.table, append([]fencing.Option{in}, tc.opts...)...)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if after := g.definition(table); after != before {
			t.Fatalf("%s changed the table", name)
		}
	}
	want(t, "Unprotect of nothing", fencing.Unprotect(t.Context(), g.pool, q+"never", in), fencing.ErrNoTable)
	want(t, "a role that doesn't own it", fencing.Protect(t.Context(), g.writer, table, in), fencing.ErrPrivilege)
	want(t, "Unprotect by a role that doesn't own it", fencing.Unprotect(t.Context(), g.writer, protected, in), fencing.ErrPrivilege)
	if after := g.definition(table); after != before {
		t.Error("a refusal changed the table")
	}
}

func TestProtectedTablesAreListed(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table(`It's "odd" 漢`, columns)
	g.protect(table, fencing.WithColumn(`ünï \ "x" 'y'`), fencing.NamedBy(`ä\{id}`), fencing.Permissive())
	var column, named string
	var permissive, added, enabled bool
	read := func() {
		t.Helper()
		if err := g.pool.QueryRow(t.Context(), g.named("SELECT token_column, permissive, named_by, column_added, enabled FROM pglock.protected_tables WHERE protected = $1::text::regclass"),
			table).Scan(&column, &permissive, &named, &added, &enabled); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if column != `ünï \ "x" 'y'` || !permissive || named != `ä\{id}` || !added || !enabled {
		t.Errorf("%s %v %s %v %v", column, permissive, named, added, enabled)
	}
	g.sql("ALTER TABLE " + table + " DISABLE TRIGGER zz_pglock_fence_updated")
	if read(); enabled {
		t.Error("a disabled trigger is not listed")
	}
}

// TestLimitsOfProtection: roles that may disable triggers can write, as doc.go says.
func TestLimitsOfProtection(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	insert := "INSERT INTO " + table + " VALUES (1)"
	root := func(statements ...string) error {
		return g.commit(g.beginOn(g.pool, pgx.TxOptions{}), statements...)
	}
	want(t, "a superuser is fenced too", root(insert), fencing.ErrUnfenced)
	want(t, "a superuser that acts as a replica", root("SET LOCAL session_replication_role = replica", insert), nil)
	want(t, "with the triggers off", root("ALTER TABLE "+table+" DISABLE TRIGGER USER", "UPDATE "+table+" SET v = 1"), nil)
}

// TestDownUnprotects, and removes what dropped tables have left.
func TestDownUnprotects(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	elsewhere := schema.Quote(pgtest.SchemaName(t))
	g.sql("CREATE SCHEMA " + elsewhere)
	table := elsewhere + ".t"
	g.sql("CREATE TABLE " + table + columns)
	g.protect(table)
	dropped := g.table("dropped", columns)
	g.protect(dropped)
	g.sql("DROP TABLE " + dropped)
	ok(t, migrations.Down(t.Context(), g.pool, migrations.WithSchema(g.schema)))
	g.sql("INSERT INTO " + table + " VALUES (1, 0)")
	g.holds(table, "(1,0)") // neither triggers nor a token are left
}
