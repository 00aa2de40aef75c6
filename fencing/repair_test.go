package fencing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestTruncateNeedsToReadTheTokens, and the error tells the right that is missing.
func TestTruncateNeedsToReadTheTokens(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	role := schema.Quote(pgtest.RoleOf(g.writer))
	g.sql("REVOKE SELECT ON " + table + " FROM " + role)
	f := g.grant("n", time.Hour)
	want(t, "a row", g.as(f, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	err := g.as(f, "TRUNCATE "+table)
	wantCode(t, "TRUNCATE", err, "42501")
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || !strings.HasPrefix(pg.Hint, "GRANT SELECT (fence_token) ON ") {
		t.Fatalf("%v has no remedy", err)
	}
	g.sql(pg.Hint)
	want(t, "control: with the right that it tells", g.as(f, "TRUNCATE "+table), nil)
	g.holds(table, "")
}

// TestP54_ProtectRepairs: Protect repairs what is missing, disabled, or another's.
func TestP54_ProtectRepairs(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	faker := g.role()
	role := schema.Quote(pgtest.RoleOf(faker))
	f := g.grant("n", time.Hour)
	enabled := func(table string) bool {
		return value[bool](g, "SELECT coalesce((SELECT enabled FROM pglock.protected_tables WHERE protected = $1::text::regclass), false)", table)
	}
	check := func(what, table string) {
		t.Helper()
		if enabled(table) {
			t.Errorf("%s: the table counts as protected", what)
		}
		g.protect(table)
		if !enabled(table) {
			t.Errorf("%s: Protect has not repaired it", what)
		}
		for _, write := range []string{"INSERT INTO %s VALUES (1)", "UPDATE %s SET v = 1", "DELETE FROM %s", "TRUNCATE %s"} {
			g.replica("DELETE FROM "+table, "INSERT INTO "+table+" VALUES (2, 0)")
			want(t, what+", then without a grant: "+write, g.unbound(sprintf(write, table)), fencing.ErrUnfenced)
			want(t, what+", then with one: "+write, g.as(f, sprintf(write, table)), nil)
		}
	}
	for what, damage := range map[string]string{
		"disabled":              "ALTER TABLE %s DISABLE TRIGGER ALL",
		"for replicas":          "ALTER TABLE %s ENABLE REPLICA TRIGGER zz_pglock_fence_updated",
		"no TRUNCATE":           "DROP TRIGGER zz_pglock_fence_truncate ON %s",
		"no stamp":              "DROP TRIGGER zz_pglock_fence_stamp ON %s",
		"no look at deletions":  "DROP TRIGGER zz_pglock_fence_deleted ON %s",
		"another one's trigger": "DROP TRIGGER zz_pglock_fence_updated ON %[1]s; CREATE TRIGGER zz_pglock_fence_updated AFTER UPDATE ON %[1]s FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()",
	} {
		table := g.table(what, columns)
		g.protect(table)
		g.sql(sprintf(damage, table))
		check(what, table)
	}
	// A role with TRIGGER makes a table look protected.
	table := g.elsewhereUnprotected("faked")
	g.sql("GRANT TRIGGER ON " + table + " TO " + role + "; GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + role)
	mine := schema.Quote(pgtest.SchemaName(t))
	g.sql("CREATE SCHEMA " + mine + " AUTHORIZATION " + role)
	fakes := []string{
		"CREATE FUNCTION " + mine + ".nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN coalesce(NEW, OLD); END $$",
		"CREATE TRIGGER zz_pglock_fence_stamp BEFORE INSERT OR UPDATE ON " + table + " FOR EACH ROW EXECUTE FUNCTION " + mine + ".nothing('fence_token', 'strict', '', 'kept', '')",
	}
	for name, when := range map[string]string{
		"inserted": "AFTER INSERT", "updated": "AFTER UPDATE", "deleted": "AFTER DELETE", "truncate": "BEFORE TRUNCATE", "truncate_rows": "BEFORE TRUNCATE",
	} {
		fakes = append(fakes, "CREATE TRIGGER zz_pglock_fence_"+name+" "+when+" ON "+table+" FOR EACH STATEMENT EXECUTE FUNCTION "+mine+".nothing('fence_token', 'strict', '', 'kept', '')")
	}
	want(t, "faked triggers", g.run(faker, fakes...), nil)
	check("faked", table)
	wantCode(t, "a trigger with a function of ours", g.run(faker, "CREATE TRIGGER x AFTER DELETE ON "+table+" REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION "+schema.Quote(g.schema)+".fence_rows('x')"), "42501")
	// One that stamps behind ours, which TRIGGER allows, is refused at the statement's end.
	want(t, "a trigger behind ours", g.run(faker,
		"CREATE FUNCTION "+mine+".meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence_token := 1; RETURN NEW; END $$",
		"CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON "+table+" FOR EACH ROW EXECUTE FUNCTION "+mine+".meddle()"), nil)
	later := g.grant("n", time.Hour)
	want(t, "what it has stamped", g.as(later, "INSERT INTO "+table+" VALUES (5, 0)"), fencing.ErrStale)
}

// TestColumnsNamedLikeVariables: a protected table may have columns with the names that the fence's
// functions use.
func TestColumnsNamedLikeVariables(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}, "permissive": {fencing.Permissive()}} {
		table := g.table("t "+kind, "(id int PRIMARY KEY, v int, bound int, last text, fine boolean, b int, r int, done text, rows text, usual int, any_row int, key int, token int, o int, n int, a int, l int, t int)")
		g.protect(table, opts...)
		f := g.grant("n1", time.Hour)
		want(t, kind, g.as(f, "INSERT INTO "+table+" (id, v) VALUES (1, 0)", "UPDATE "+table+" SET v = 1, bound = 5", "DELETE FROM "+table), nil)
		want(t, kind+", truncated", g.as(f, "DELETE FROM "+table), nil)
	}
}
