package fencing_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// The attacks in this file are those that a review found on the second design. Each got past it.

// TestThirdRoundRowsThatMove: servers up to 18 give rows that MERGE moves to another partition to no
// trigger after the statement.
func TestThirdRoundRowsThatMove(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}, "permissive": {fencing.Permissive()}} {
		for keys, by := range map[string]string{"a column": "(id)", "an expression": "((id / 10))"} {
			t.Run(kind+", by "+keys, func(t *testing.T) {
				t.Parallel()
				g := newFixture(t)
				outsider := g.role("outsider")
				key := ""
				if keys == "a column" {
					key = ", PRIMARY KEY (id)"
				}
				table := g.table("root", "(id int, v int"+key+") PARTITION BY RANGE "+by)
				g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES FROM (0) TO (1); CREATE TABLE pglock.p2 PARTITION OF " + table + " DEFAULT")
				g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + schema.Quote(pgtest.RoleOf(outsider)))
				g.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO " + schema.Quote(pgtest.RoleOf(outsider)))
				g.protect(table, opts...)
				older := g.grant("old", time.Hour)
				zero, eleven := g.grant("n0", time.Hour), g.grant("n11", time.Hour)
				honest := func(statements ...string) error {
					return g.run(g.writer, append([]string{g.bindSQL(zero), g.bindSQL(eleven)}, statements...)...)
				}
				moves := map[string]string{"UPDATE": "UPDATE " + table + " SET id = 11, v = 666 WHERE id = 0"}
				if g.serverVersion() >= mergeSince {
					moves["MERGE"] = "MERGE INTO " + table + " AS t USING (VALUES (0)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 11, v = 666"
				}
				for what, move := range moves {
					g.sql("SET session_replication_role = replica; DELETE FROM " + table + sprintf("; INSERT INTO %s (id, v, fence_token) VALUES (0, 0, %d); RESET session_replication_role", table, zero.Token))
					before := g.dump(table)
					attacks := map[string]error{
						"forged":      g.run(outsider, "SELECT "+g.forge("n11", huge), move),
						"older grant": g.run(g.writer, g.bindSQL(older), move),
					}
					if kind != "permissive" {
						attacks["no grant"] = g.run(outsider, move)
					} else {
						attacks["no grant, another token"] = g.run(outsider, strings.Replace(move, "v = 666", "fence_token = 7", 1), "SELECT "+g.forge("n11", 7), move)
					}
					for who, err := range attacks {
						refused(t, what+", "+who, err)
					}
					if after := g.dump(table); after != before {
						t.Errorf("%s: the table has %s, not %s", what, after, before)
					}
					want(t, "control: "+what, honest(move), nil)
					g.holds(table, "(11,666,%d)", eleven.Token)
				}
			})
		}
	}
}

// ownerOf returns a role with the rights of a table's owner, and the schema that it owns.
func ownerOf(t *testing.T, g fixture) (owner *pgxpool.Pool, mine string) {
	t.Helper()
	owner, mine = g.role("owner"), schema.Quote(pgtest.SchemaName(t))
	role := schema.Quote(pgtest.RoleOf(owner))
	g.sql("CREATE SCHEMA " + mine + " AUTHORIZATION " + role)
	g.sql("SELECT pglock.grant_owner('" + strings.ReplaceAll(pgtest.RoleOf(owner), "'", "''") + "')")
	g.sql("GRANT TEMPORARY ON DATABASE " + schema.Quote(value[string](g, "SELECT current_database()")) + " TO " + role)
	return owner, mine
}

// TestThirdRoundNothingRunsAsTheLocksOwner: a table's owner makes triggers of its own with the fence's
// functions. They call no code of the owner's with the rights of the role that owns the locks.
func TestThirdRoundNothingRunsAsTheLocksOwner(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	owner, mine := ownerOf(t, g)
	here := schema.Quote(g.schema)
	do := func(format string) string {
		return strings.NewReplacer("{m}", mine, "{h}", here).Replace(format)
	}
	want(t, "preparations", g.run(owner,
		do("CREATE TABLE {m}.ran (who text)"),
		do("GRANT ALL ON {m}.ran TO PUBLIC"), do("GRANT USAGE ON SCHEMA {m} TO PUBLIC"),
		do("CREATE TYPE {m}.en AS ENUM ('a')"),
		do("CREATE FUNCTION {m}.evil() RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {m}.ran VALUES (current_user); RETURN 0; END $f$"),
		do("CREATE FUNCTION {m}.to_json({m}.en) RETURNS json LANGUAGE plpgsql AS $f$ BEGIN PERFORM {m}.evil(); RETURN '1'; END $f$"),
		do("CREATE CAST ({m}.en AS json) WITH FUNCTION {m}.to_json({m}.en)"),
	), nil)
	for what, statements := range map[string][]string{
		"a function in the place of the token": {
			"CREATE TABLE {m}.z (id int, e {m}.en)",
			"CREATE TRIGGER a AFTER INSERT ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('to_jsonb', 'strict', '')",
			"INSERT INTO {m}.z VALUES (1, 'a')",
		},
		"a function in the lock's name": {
			"CREATE TABLE {m}.z (id int, e {m}.en, fence_token bigint)",
			"CREATE TRIGGER a AFTER INSERT ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', 'n{to_jsonb}', 'kept', '', 'n', 'to_jsonb')",
			"{bind}", "INSERT INTO {m}.z VALUES (1, 'a')",
		},
		"a function in the name of a moved row's lock": {
			"CREATE TABLE {m}.z (id int, e {m}.en, fence_token bigint)", "INSERT INTO {m}.z VALUES (1, 'a')",
			"CREATE TRIGGER a BEFORE UPDATE ON {m}.z FOR EACH ROW EXECUTE FUNCTION {h}.fence_moved('fence_token', 'permissive', 'n{to_jsonb}', 'kept', '', 'n', 'to_jsonb')",
			"{bind}", "UPDATE {m}.z SET id = 2",
		},
		"views in the place of rows": {
			"CREATE TABLE {m}.z (id int, fence_token bigint)",
			"CREATE TEMP VIEW new_rows AS SELECT {m}.evil() AS fence_token",
			"CREATE TRIGGER a AFTER INSERT ON {m}.z FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', '')",
			"INSERT INTO {m}.z VALUES (1, 1)",
		},
		"a view in the place of old rows": {
			"CREATE TABLE {m}.z (id int, fence_token bigint)", "INSERT INTO {m}.z VALUES (1, 1)",
			"CREATE TEMP VIEW old_rows AS SELECT {m}.evil() AS fence_token",
			"CREATE TRIGGER a AFTER UPDATE ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', '')",
			"UPDATE {m}.z SET id = 2",
		},
	} {
		bind := g.bindSQL(g.grant("n1", time.Hour))
		g.sql("GRANT EXECUTE ON FUNCTION pglock.bind(text, bigint) TO " + schema.Quote(pgtest.RoleOf(owner)))
		tx, err := owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range statements {
			_, err = tx.Exec(t.Context(), strings.ReplaceAll(do(s), "{bind}", bind))
			if err != nil && i < len(statements)-1 {
				t.Errorf("%s: %s: %v", what, s, err)
			}
		}
		if err == nil { // what ran is there to be seen
			var ran string
			if err := tx.QueryRow(t.Context(), do("SELECT coalesce(string_agg(who, ' '), '') FROM {m}.ran")).Scan(&ran); err != nil || ran != "" {
				t.Errorf("%s: the owner's function ran as %s, %v", what, ran, err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	var who string
	if err := owner.QueryRow(t.Context(), do("SELECT to_jsonb(z)::text FROM (SELECT 'a'::{m}.en AS e) AS z")).Scan(&who); err != nil {
		t.Error(err)
	}
	if n := value[int](g, do("SELECT count(*) FROM {m}.ran")); n != 1 {
		t.Errorf("control: the cast ran %d times for its owner", n)
	}
}

// TestThirdRoundTruncate: TRUNCATE compares with the sealed token, not with the setting beside it.
func TestThirdRoundTruncate(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	older, newer := g.grant("n1", time.Hour), g.grant("n2", time.Hour)
	token := settings(g)["token"]
	for _, forged := range []string{"9000000000000000000", ""} {
		g.reset(table, newer.Token)
		refused(t, "TRUNCATE with token "+forged, g.run(g.writer, g.bindSQL(older), sprintf("SELECT set_config('%s', '%s', true)", token, forged), "TRUNCATE "+table))
		g.holds(table, "(1,0,%d)", newer.Token)
	}
	want(t, "control: the newer grant", g.run(g.writer, g.bindSQL(newer), "TRUNCATE "+table), nil)
}

// TestThirdRoundPermissiveTokensStay: without a grant no row of a permissive table gets another token,
// also not that of another row, or none.
func TestThirdRoundPermissiveTokensStay(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhereUnprotected("t")
	g.protect(table, fencing.Permissive())
	token := settings(g)["token"]
	put := "SET session_replication_role = replica; DELETE FROM " + table + "; INSERT INTO " + table + " (id, v, fence_token) VALUES (1, 0, 1), (2, 0, 2); RESET session_replication_role"
	for what, attack := range map[string]string{
		"swapped": "UPDATE " + table + sprintf(" SET v = length(set_config('%s', CASE id WHEN 1 THEN '2' ELSE '1' END, true))", token),
		"zeroed":  "UPDATE " + table + sprintf(" SET v = length(set_config('%s', '0', true))", token),
	} {
		g.sql(put)
		refused(t, what, g.run(g.writer, attack))
		g.holds(table, "(1,0,1) (2,0,2)")
	}
	want(t, "control: a write that leaves the tokens", g.run(g.writer, "UPDATE "+table+" SET v = 5, fence_token = 9"), nil)
	g.holds(table, "(1,5,1) (2,5,2)")
	f := g.grant("n", time.Hour)
	want(t, "control: a write with a grant", g.as(f, "UPDATE "+table+" SET v = 6 WHERE id = 1"), nil)
	g.holds(table, "(1,6,%d) (2,5,2)", f.Token)
}

// TestThirdRoundNobodyBlocksTheWayDown: objects that roles without rights have built on a protected
// table's column, and on types in the locks' schema, do not block migrating down.
func TestThirdRoundNobodyBlocksTheWayDown(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	looker := g.role("looker")
	owner, mine := ownerOf(t, g)
	table := g.elsewhere("t")
	att := schema.Quote(pgtest.SchemaName(t))
	role := schema.Quote(pgtest.RoleOf(looker))
	here := schema.Quote(g.schema)
	g.sql("CREATE SCHEMA " + att + " AUTHORIZATION " + role)
	g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + role)
	for _, kind := range []string{"distributed_locks", "lock_waiters", "fencing_epoch", "fencing_high_water", "fencing_secret", "protected_tables", "once_keys", "once_started"} {
		for _, column := range []string{kind, kind + "[]"} {
			if err := g.run(looker, sprintf("CREATE TABLE %s.o (x %s.%s)", att, here, column)); err == nil {
				t.Errorf("a role with USAGE has built a table on the type %s", column)
			}
		}
	}
	want(t, "a view on the token column", g.run(looker, "CREATE VIEW "+att+".v AS SELECT fence_token FROM "+table), nil)
	want(t, "a view on the locks", g.run(looker, "CREATE VIEW "+att+".w AS SELECT ticket FROM "+here+".distributed_locks"), nil)
	want(t, "a view with a trigger, and a child", g.run(owner,
		"CREATE TABLE "+mine+".t (id int)", "CREATE VIEW "+mine+".v AS SELECT * FROM "+mine+".t",
		"CREATE TRIGGER a AFTER INSERT ON "+mine+".v FOR EACH STATEMENT EXECUTE FUNCTION "+here+".fence_rows('fence_token', 'strict', '')"), nil)
	if err := migrations.Down(context.Background(), g.pool, migrations.WithSchema(g.schema)); err != nil {
		t.Errorf("Down: %v", err)
	}
	if err := migrations.Up(t.Context(), g.pool, migrations.WithSchema(g.schema)); err != nil {
		t.Errorf("Up: %v", err)
	}
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

// TestTokensBeginAtOne: a role that may write lock rows can't bind a token that no grant has.
func TestTokensBeginAtOne(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	for _, token := range []int64{0, -5} {
		g.sql("DELETE FROM pglock.distributed_locks")
		g.sql("INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('n', $1, 1, now(), now() + interval '1 hour')", token)
		for _, call := range []string{"bind", "guard"} {
			want(t, call, g.run(g.writer, sprintf("SELECT %s.%s('n', %d)", schema.Quote(g.schema), call, token)), fencing.ErrInvalidFence)
		}
	}
}
