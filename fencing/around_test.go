package fencing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestIndirectWritesAreFenced: writes by views, rules, cursors, functions of the owner's and other
// tables' triggers fire the table's own triggers.
func TestIndirectWritesAreFenced(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	g.sql("CREATE VIEW pglock.a_view AS SELECT id, v FROM " + table)
	g.sql("CREATE TABLE pglock.ruled (id int)")
	g.sql("CREATE RULE ruled AS ON INSERT TO pglock.ruled DO INSTEAD INSERT INTO " + table + " VALUES (NEW.id, 0)")
	g.sql("CREATE TABLE pglock.triggering (id int)")
	g.sql("CREATE FUNCTION pglock.copies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + table + " VALUES (NEW.id, 0); RETURN NEW; END $$")
	g.sql("CREATE TRIGGER copies BEFORE INSERT ON pglock.triggering FOR EACH ROW EXECUTE FUNCTION pglock.copies()")
	g.sql("CREATE FUNCTION pglock.owners() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ UPDATE " + table + " SET v = 1 $$")
	for _, name := range []string{"a_view", "ruled", "triggering"} {
		g.open(schema.Quote(g.schema) + "." + name)
	}
	f := g.grant("n", time.Minute)
	for name, statements := range map[string][]string{
		"view":              {"UPDATE pglock.a_view SET v = 1"},
		"insert by view":    {"INSERT INTO pglock.a_view VALUES (2, 0)"},
		"rule":              {"INSERT INTO pglock.ruled VALUES (2)"},
		"another's trigger": {"INSERT INTO pglock.triggering VALUES (2)"},
		"owner's function":  {"SELECT pglock.owners()"},
		"cursor":            {"DECLARE c CURSOR FOR SELECT FROM " + table + " FOR UPDATE", "FETCH c", "UPDATE " + table + " SET v = 1 WHERE CURRENT OF c"},
		"block":             {"DO $$ BEGIN UPDATE " + table + " SET v = 1; END $$"},
		"caught":            {"DO $$ BEGIN UPDATE " + table + " SET v = 1; EXCEPTION WHEN OTHERS THEN RAISE; END $$"},
		"replaced":          {"DELETE FROM " + table, "INSERT INTO " + table + " VALUES (1, 1)"},
	} {
		g.sql("SET session_replication_role = replica; DELETE FROM " + table + "; INSERT INTO " + table + " VALUES (1, 0); RESET session_replication_role")
		want(t, name+" without a grant", g.unbound(statements...), fencing.ErrUnfenced)
		g.holds(table, "(1,0,)")
		want(t, name+" with one", g.as(f, statements...), nil)
		if got := g.dump(table); !strings.Contains(got, sprintf(",%d)", f.Token)) {
			t.Errorf("%s with a grant left %s", name, got)
		}
	}
}

// TestTruncateSeesRowsBehindRowSecurity: row security must not hide newer rows from its check.
func TestTruncateSeesRowsBehindRowSecurity(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
	want(t, "late", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	g.sql("CREATE POLICY none ON " + table + " USING (false); ALTER TABLE " + table + " ENABLE ROW LEVEL SECURITY")
	if err := g.as(early, "TRUNCATE "+table); err == nil {
		t.Error("rows that a later grant has written, and that the writer can't see, are gone")
	}
	g.holds(table, "(1,0,%d)", late.Token)
	g.sql("ALTER TABLE " + table + " DISABLE ROW LEVEL SECURITY")
	want(t, "control: a TRUNCATE by the later one", g.as(late, "TRUNCATE "+table), nil)
}

// TestRenamed: a renamed table stays protected. If a column that the triggers use is renamed or
// dropped, writes fail until the table is protected again. Unprotect finds the added column by its
// new name.
func TestRenamed(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	early, late := g.grant("n1", time.Minute), g.grant("n1", time.Minute)
	in := fencing.WithSchema(g.schema)
	q := schema.Quote(g.schema) + "."
	table := g.table("t", columns)
	before := g.tableOnly(table)
	g.protect(table, fencing.NamedBy("n{id}"))
	g.sql("ALTER TABLE " + table + " RENAME TO renamed")
	table = q + "renamed"
	want(t, "a renamed table", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	want(t, "without a grant", g.unbound("UPDATE "+table+" SET v = 1"), fencing.ErrUnfenced)
	want(t, "with an ended one", fencing.Bind(t.Context(), g.begin(), early), fencing.ErrStale)

	for name, change := range map[string][2]string{
		"token":    {"RENAME fence_token TO stamp", "RENAME stamp TO fence_token"},
		"the lock": {"RENAME id TO number", "RENAME number TO id"},
	} {
		g.sql("ALTER TABLE " + table + " " + change[0])
		for _, write := range []string{"UPDATE %s SET v = 2", "DELETE FROM %s"} {
			var pg *pgconn.PgError
			err := g.as(g.grant("n2", time.Minute), sprintf(write, table)) // another lock's
			if !errors.As(err, &pg) || pg.Code != "42703" && pg.Code != "PGL03" {
				t.Errorf("%s renamed: %s: %v", name, write, err)
			}
			if err := g.unbound(sprintf(write, table)); !errors.Is(err, fencing.ErrUnfenced) && (!errors.As(err, &pg) || pg.Code != "42703") {
				t.Errorf("%s renamed: %s without a grant: %v", name, write, err)
			}
		}
		g.sql("ALTER TABLE " + table + " " + change[1])
		want(t, name+" renamed back", g.as(late, "UPDATE "+table+" SET v = 3"), nil)
	}
	g.sql("ALTER TABLE " + table + " RENAME fence_token TO stamp")
	g.sql("ALTER TABLE " + table + " ADD fence_token bigint DEFAULT 5") // the user's own
	if err := fencing.Unprotect(t.Context(), g.pool, table, in); err != nil {
		t.Fatal(err)
	}
	if columns := g.tableOnly(table); columns != "id v fence_token0" {
		t.Errorf("Unprotect left %s", columns)
	}
	g.sql("ALTER TABLE " + table + " DROP fence_token")
	g.protect(table)
	g.sql("ALTER TABLE " + table + " ALTER fence_token DROP DEFAULT")
	if err := fencing.Unprotect(t.Context(), g.pool, table, in); err != nil {
		t.Fatal(err)
	}
	if after := g.tableOnly(table); after != before {
		t.Errorf("Unprotect left %s, at first it was %s", after, before)
	}
	// A column that the triggers use can't be dropped.
	g.protect(table)
	if _, err := g.pool.Exec(t.Context(), "ALTER TABLE "+table+" DROP fence_token"); err == nil {
		t.Error("the column was dropped")
	}
}

// TestAReadOnlyTransactionCannotBeGuarded, and the error says so.
func TestAReadOnlyTransactionCannotBeGuarded(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	var pg *pgconn.PgError
	if err := fencing.Check(t.Context(), g.beginOn(g.writer, pgx.TxOptions{AccessMode: pgx.ReadOnly}), f); !errors.As(err, &pg) || pg.Code != "25006" {
		t.Errorf("%v", err)
	}
}
