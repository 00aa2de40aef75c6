package fencing_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// privilege fails the test unless err says that a right is missing.
func privilege(t *testing.T, what string, err error) {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" {
		t.Errorf("%s: %v, want insufficient_privilege", what, err)
	}
}

// looker is a role with USAGE on the schema of the locks, as for monitoring.
func (g fixture) looker() *fixtureRole {
	g.t.Helper()
	pool := g.role("looker")
	r := &fixtureRole{fixture: g, name: pgtest.RoleOf(pool)}
	r.run = func(statements ...string) error { return g.run(pool, statements...) }
	g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + schema.Quote(r.name))
	return r
}

type fixtureRole struct {
	fixture
	name string
	run  func(statements ...string) error
}

// TestP51_TriggerFunctionsAreNotForOthersTables: a role with USAGE alone can't attach them to a table of
// its own. The control is a role that may protect its tables, which can: it learns nothing by that.
func TestP51_TriggerFunctionsAreNotForOthersTables(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	looker, owner := g.looker(), g.looker()
	g.sql("SELECT pglock.grant_owner(" + literal(owner.name) + ")")
	f := g.grant("n", time.Hour)
	here := schema.Quote(g.schema)
	functions := strings.Fields(value[string](g, "SELECT string_agg(proname, ' ') FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND prorettype = 'trigger'::regtype", here))
	if len(functions) < 4 {
		t.Fatalf("trigger functions %v", functions)
	}
	attach := func(function string) []string {
		event, refs := "BEFORE INSERT", " FOR EACH ROW"
		switch function {
		case "fence_rows":
			event, refs = "AFTER INSERT", " REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT"
		case "fence_truncate", "fence_truncate_rows":
			event, refs = "BEFORE TRUNCATE", " FOR EACH STATEMENT"
		}
		return []string{
			"CREATE TEMP TABLE mine (id int, fence_token bigint) ON COMMIT DROP",
			"CREATE TRIGGER x " + event + " ON mine" + refs + " EXECUTE FUNCTION " + here + "." + function + "('fence_token', 'permissive', '', 'kept', '')",
			"SELECT " + g.forge("n", f.Token),
		}
	}
	for _, function := range functions {
		privilege(t, function, looker.run(attach(function)...))
		for _, write := range []string{"INSERT INTO mine VALUES (1)", "TRUNCATE mine"} {
			err := owner.run(append(attach(function), write)...)
			if err != nil && (strings.Contains(err.Error(), sprintf("%d", f.Token)) || !errors.Is(err, fencing.ErrUnfenced)) {
				t.Errorf("%s on a table of its own says %v", function, err)
			}
		}
	}
	for _, call := range []string{
		"fencing_seal('', '{}')", "bound_grants()", "judge_rows('{}', 'n', 1, 1, 1, '', '', '')", "bind('n', 1)", "advance('r', 1)", "guard('n', 1)", "check_fence('n', 1)",
	} {
		privilege(t, call, looker.run("SELECT "+here+"."+call))
		privilege(t, call+" by an owner", owner.run("SELECT "+here+"."+call))
	}
	for _, table := range []string{"fencing_secret", "fencing_high_water", "distributed_locks"} {
		privilege(t, table, looker.run("SELECT * FROM "+here+"."+table))
	}
	privilege(t, "the key, by a writer", g.run(g.writer, "SELECT * FROM "+here+".fencing_secret"))
	privilege(t, "a seal, by a writer", g.run(g.writer, "SELECT "+here+".fencing_seal('', '{}')"))
	user := pgtest.UserPool(t, g.pool, g.schema)
	privilege(t, "the key, by a user", g.run(user, "SELECT * FROM "+here+".fencing_secret"))
	privilege(t, "a seal, by a user", g.run(user, "SELECT "+here+".fencing_seal('', '{}')"))
}

// TestP51_OperatorsInTheLockSchemaHaveNoPart: no role needs CREATE there. A role that has it all the same
// finds no function that runs with its owner's rights and uses an operator, cast or function of
// that schema. The control shows that the operator is the better match where nothing is pinned.
func TestP51_OperatorsInTheLockSchemaHaveNoPart(t *testing.T) {
	t.Parallel()
	g := newFixtureOn(t, pgtest.PoolOn(t, pgtest.Database(t)))
	attacker := g.role("attacker")
	role, here := schema.Quote(pgtest.RoleOf(attacker)), schema.Quote(g.schema)
	f := g.grant("n1", time.Hour)
	table := g.elsewhereUnprotected("t")
	named := g.elsewhereUnprotected("named")
	g.protect(table)
	g.protect(named, fencing.NamedBy("n{id}"))
	g.sql("GRANT USAGE, CREATE ON SCHEMA " + here + " TO " + role + "; GRANT USAGE ON DOMAIN pglock.lock_name, pglock.lease_end, pglock.token_value TO " + role)
	deceive := func(args, returns string) string {
		return "(" + args + ") RETURNS " + returns + " LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE " + strings.ReplaceAll(role, "'", "''") + " SUPERUSER'; RETURN NULL; END $$"
	}
	var attack []string
	for i, types := range [][2]string{{"lock_name", "text"}, {"text", "lock_name"}, {"lock_name", "lock_name"}, {"bigint", "bigint"}, {"text", "text"}, {"lease_end", "timestamptz"}, {"token_value", "bigint"}, {"token_value", "integer"}, {"jsonb", "text"}} {
		for j, op := range []string{"=", "<>", ">", "<", "<=", ">=", "+", "-", "||", "->>", "*"} {
			l, r := types[0], types[1]
			for _, domain := range []string{"lock_name", "lease_end", "token_value"} {
				l, r = strings.ReplaceAll(l, domain, here+"."+domain), strings.ReplaceAll(r, domain, here+"."+domain)
			}
			name := sprintf("%s.deceive_%d_%d", here, i, j)
			attack = append(attack, "CREATE FUNCTION "+name+deceive(l+", "+r, "boolean"),
				sprintf("CREATE OPERATOR %s.%s (FUNCTION = %s, LEFTARG = %s, RIGHTARG = %s)", here, op, name, l, r))
		}
	}
	for _, function := range []string{"clock_timestamp()", "current_setting(text)", "current_setting(text, boolean)", "format(text, text)", "octet_length(text)"} {
		name, args, _ := strings.Cut(strings.TrimSuffix(function, ")"), "(")
		attack = append(attack, "CREATE FUNCTION "+here+"."+name+deceive(args, "text"))
	}
	for _, s := range attack {
		if err := g.run(attacker, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	own := g.begin()
	if _, err := own.Exec(t.Context(), "SET LOCAL search_path TO "+here); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Exec(t.Context(), sprintf("SELECT 'n'::%s.lock_name = 'n'::text", here)); err == nil {
		t.Error("control: the operator is not found where nothing is pinned")
	}
	next := func() string { return sprintf("%d", g.grant("n1", time.Hour).Token) }
	token := sprintf("%d", f.Token)
	root := func(s string) error { return g.run(g.pool, s) }
	for what, err := range map[string]error{
		"guard": root("SELECT " + here + ".guard('n1', " + token + ")"), "check": root("SELECT " + here + ".check_fence('n1', " + token + ")"),
		"advance":  root("SELECT " + here + ".advance('r', 5), " + here + ".advance('r', 6)"),
		"writes":   g.as(f, "INSERT INTO "+table+" VALUES (1)", "UPDATE "+table+" SET v = 1", "INSERT INTO "+named+" VALUES (1)", "DELETE FROM "+named, "TRUNCATE "+table),
		"a list":   root("SELECT * FROM " + here + ".protected_tables"),
		"Protect":  fencing.Protect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)),
		"a writer": root("SELECT " + here + ".bind('n1', " + next() + ")"),
	} {
		want(t, what, err, nil)
	}
	want(t, "a stale one", root("SELECT "+here+".guard('n1', "+token+")"), fencing.ErrStale)
	want(t, "no fence", root("SELECT "+here+".guard('n1', 0)"), fencing.ErrInvalidFence)
	if value[bool](g, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", pgtest.RoleOf(attacker)) {
		t.Error("the attacker has become a superuser")
	}
}

// TestAnOwnersTableRunsNothingAsTheLocksOwner: casts, functions in indexes and constraints, and types of
// a table's owner run with the rights of the role that writes. The table's owner can't reach those of
// the locks' owner.
func TestAnOwnersTableRunsNothingAsTheLocksOwner(t *testing.T) {
	t.Parallel()
	g := newFixtureOn(t, pgtest.PoolOn(t, pgtest.Database(t)))
	owner := g.role("owner")
	role := pgtest.RoleOf(owner)
	g.sql("SELECT pglock.grant_owner(" + literal(role) + "); SELECT pglock.grant_writer(" + literal(role) + ")")
	g.sql("GRANT CREATE ON DATABASE " + schema.Quote(value[string](g, "SELECT current_database()")) + " TO " + schema.Quote(role))
	f := g.grant("n", time.Hour)
	for _, s := range []string{
		"CREATE SCHEMA mine; CREATE TABLE mine.ran (as_role text)",
		"CREATE TYPE mine.e AS ENUM ('1', '2')",
		"CREATE FUNCTION mine.note() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN INSERT INTO mine.ran VALUES (current_user); RETURN 1; END $$",
		"CREATE FUNCTION mine.cast(mine.e) RETURNS bigint LANGUAGE sql AS 'SELECT mine.note()'",
		"CREATE CAST (mine.e AS bigint) WITH FUNCTION mine.cast(mine.e) AS IMPLICIT",
		"CREATE FUNCTION mine.say(mine.e) RETURNS text LANGUAGE sql AS 'SELECT mine.note()::text'",
		"CREATE CAST (mine.e AS text) WITH FUNCTION mine.say(mine.e) AS IMPLICIT",
		"CREATE FUNCTION mine.const() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN current_user = " + literal(role) + " OR pg_catalog.pg_has_role(current_user, " + literal(role) + ", 'MEMBER') AND mine.fail(); END $$",
		"CREATE FUNCTION mine.fail() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'ran as %', current_user; END $$",
		"CREATE TYPE mine.c AS (a int)",
		"CREATE FUNCTION mine.of_c(mine.c) RETURNS bigint LANGUAGE sql AS 'SELECT mine.note()'",
		"CREATE CAST (mine.c AS bigint) WITH FUNCTION mine.of_c(mine.c) AS IMPLICIT",
		"CREATE TABLE mine.t (id text, v int)",
		"CREATE INDEX ON mine.t (v) WHERE mine.const()",
		"ALTER TABLE mine.t ADD CHECK (mine.const() OR id IS NULL)",
	} {
		if err := g.run(owner, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	want(t, "Protect", fencing.Protect(t.Context(), owner, "mine.t", fencing.NamedBy("{id}"), fencing.WithSchema(g.schema)), nil)
	bind := g.bindSQL(f)
	own := g.grant("2", time.Hour)
	want(t, "control: its own write", g.run(owner, g.bindSQL(own), "INSERT INTO mine.t VALUES ('2', 1)", "UPDATE mine.t SET v = 2"), nil)
	// The token column becomes something else behind the triggers' back.
	want(t, "Unprotect", fencing.Unprotect(t.Context(), owner, "mine.t", fencing.WithSchema(g.schema)), nil)
	want(t, "Protect", fencing.Protect(t.Context(), owner, "mine.t", fencing.WithSchema(g.schema)), nil)
	for i, kind := range []string{"mine.e", "mine.c"} {
		for _, s := range []string{sprintf("ALTER TABLE mine.t RENAME fence_token TO was%d", i), "ALTER TABLE mine.t ADD fence_token " + kind} {
			want(t, s, g.run(owner, s), nil)
		}
		want(t, "a row", g.run(owner, "ALTER TABLE mine.t DISABLE TRIGGER USER", "INSERT INTO mine.t (v) VALUES (9)", "ALTER TABLE mine.t ENABLE TRIGGER USER"), nil)
		for _, write := range []string{"INSERT INTO mine.t (v) VALUES (1)", "UPDATE mine.t SET v = 3", "DELETE FROM mine.t", "TRUNCATE mine.t"} {
			for _, begin := range []string{bind, "SELECT 1"} {
				if err := g.run(owner, begin, write); err == nil && !strings.HasPrefix(write, "TRUNCATE") {
					t.Errorf("%s: %s: passed", kind, write)
				}
			}
		}
	}
	if n := value[int](g, "SELECT count(*) FROM mine.ran WHERE as_role <> $1", role); n != 0 {
		t.Errorf("code of the table's owner ran %d times with another role's rights", n)
	}
}

// TestTruncateSeesWhatTheSnapshotDoesNot: TRUNCATE removes all rows, also those that the transaction's
// snapshot has missed.
func TestTruncateSeesWhatTheSnapshotDoesNot(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	early := g.grant("early", time.Hour)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		want(t, "Bind", fencing.Bind(t.Context(), tx, early), nil)
		late := g.grant("late", time.Hour)
		want(t, "late", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
		var pg *pgconn.PgError
		if err := g.send(tx, "TRUNCATE "+table); !errors.As(err, &pg) || pg.Code != "0A000" {
			t.Errorf("%s: %v", level, err)
		}
		g.holds(table, "(1,0,%d)", late.Token)
		want(t, "READ COMMITTED sees it", g.as(early, "TRUNCATE "+table), fencing.ErrStale)
		want(t, "control: the later holder", g.as(late, "TRUNCATE "+table), nil)
		g.holds(table, "")
	}
}

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
	privilege(t, "TRUNCATE", err)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || !strings.HasPrefix(pg.Hint, "GRANT SELECT (fence_token) ON ") {
		t.Fatalf("%v has no remedy", err)
	}
	g.sql(pg.Hint)
	want(t, "control: with the right that it tells", g.as(f, "TRUNCATE "+table), nil)
	g.holds(table, "")
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

// TestSwappedColumnsNameOneLock: after two columns have changed their names no lock's holder can write
// until the table is protected again; then the row belongs to the lock of the new name.
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

// TestP54_ProtectRepairs: Protect repairs what is missing, disabled, or another's.
func TestP54_ProtectRepairs(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	faker := g.role("faker")
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
			g.sql("SET session_replication_role = replica; DELETE FROM " + table + "; INSERT INTO " + table + " VALUES (2, 0); RESET session_replication_role")
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
	privilege(t, "a trigger with a function of ours", g.run(faker, "CREATE TRIGGER x AFTER DELETE ON "+table+" REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION "+schema.Quote(g.schema)+".fence_rows('x')"))
	// One that stamps behind ours, which TRIGGER allows, is refused at the statement's end.
	want(t, "a trigger behind ours", g.run(faker,
		"CREATE FUNCTION "+mine+".meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence_token := 1; RETURN NEW; END $$",
		"CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON "+table+" FOR EACH ROW EXECUTE FUNCTION "+mine+".meddle()"), nil)
	later := g.grant("n", time.Hour)
	want(t, "what it has stamped", g.as(later, "INSERT INTO "+table+" VALUES (5, 0)"), fencing.ErrStale)
}

// TestUsageBlocksNothing: objects that a role with USAGE builds on the schema's stop neither Unprotect
// nor Down, and go with Down.
func TestUsageBlocksNothing(t *testing.T) {
	t.Parallel()
	g := newFixtureOn(t, pgtest.PoolOn(t, pgtest.Database(t)))
	looker := g.looker()
	here := schema.Quote(g.schema)
	g.sql("CREATE SCHEMA mine AUTHORIZATION " + schema.Quote(looker.name))
	table := g.elsewhere("t")
	built := 0
	for _, s := range []string{
		"CREATE VIEW mine.v AS SELECT * FROM " + here + ".protected_tables",
		"CREATE TABLE mine.t (id int, k bigint DEFAULT " + here + ".advisory_key('a', 'b'))",
		"CREATE VIEW mine.f AS SELECT " + here + ".idle_limit(5)",
		"CREATE TABLE mine.d (name " + here + ".lock_name)",
		"CREATE TRIGGER x BEFORE INSERT ON mine.t FOR EACH ROW EXECUTE FUNCTION " + here + ".fence_stamp()",
	} {
		if looker.run(s) == nil {
			built++
		}
	}
	if built != 3 {
		t.Errorf("control: %d objects depend on the schema", built)
	}
	want(t, "Unprotect", fencing.Unprotect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), nil)
	g.protect(table)
	if err := migrations.Down(t.Context(), g.pool, migrations.WithSchema(g.schema)); err != nil {
		t.Errorf("Down: %v", err)
	}
	want(t, "its table stays", looker.run("INSERT INTO mine.t (id) VALUES (1)"), nil)
}

// TestAUserLeavesNoDamageBehind: rows that no release and no acquire could get over are refused. The
// controls are the highest and lowest values that pass, and the statements go on with them.
func TestAUserLeavesNoDamageBehind(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	user := pgtest.UserPool(t, g.pool, g.schema)
	here := schema.Quote(g.schema)
	format := strings.ReplaceAll(here, "%", "%%")
	const limit = int64(1) << 62
	waiter := "INSERT INTO " + format + ".lock_waiters (name, client, expires_at) VALUES ('n', %s, now() + interval '1 hour')"
	update := "UPDATE " + format + ".distributed_locks SET %s WHERE name = 'n'"
	wait := "UPDATE " + format + ".lock_waiters SET %s"
	permit := "INSERT INTO " + format + ".lock_permits (name, token, weight, version, acquired_at, expires_at, request) VALUES ('n', 1, %d, 1, now(), now(), gen_random_uuid())"
	g.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('n', 'waiter', now() + interval '1 hour')")
	insert := "INSERT INTO " + format + ".distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('m', %d, 1, now(), now())"
	g.grant("n", time.Hour)
	for _, damage := range []string{
		sprintf(waiter, "''"), sprintf(waiter, "repeat('c', 64)"),
		sprintf(update, sprintf("token = %d", int64(math.MaxInt64))), sprintf(update, sprintf("token = %d", limit+1)),
		sprintf(insert, int64(math.MaxInt64)),
		sprintf(update, "expires_at = 'infinity'"), sprintf(update, "acquired_at = 'infinity'"), sprintf(update, "acquired_at = '-infinity'"), sprintf(update, "ended_at = 'infinity'"),
		sprintf(update, "acquired_at = '0044-03-15 BC'"), sprintf(update, "expires_at = '9998-01-01'"), sprintf(update, "expires_at = '0044-03-15 BC'"),
		sprintf(update, "capacity = 0"), sprintf(update, "capacity = 2, in_use = -2147483648"), sprintf(update, "in_use = 1073741825"),
		sprintf(waiter, "'/5'"), sprintf(wait, "since = 'infinity'"), sprintf(wait, "keep_until = 'infinity'"),
		sprintf(wait, "expires_at = 'infinity'"), sprintf(wait, "since = '0044-03-15 BC'"), sprintf(wait, "weight = -2147483648"),
		sprintf(permit, 1073741825), sprintf(permit, 0),
	} {
		var pg *pgconn.PgError
		if err := g.run(user, damage); !errors.As(err, &pg) || pg.Code != "23514" {
			t.Errorf("%s: %v, want check_violation", damage, err)
		}
	}
	next := sprintf(update, "token = greatest(1, token + 1), version = version + 1")
	want(t, "control: what passes", g.run(user, sprintf(waiter, "repeat('c', 63)"), sprintf(update, sprintf("token = %d", limit)), next, next,
		sprintf(update, "expires_at = '-infinity'"), sprintf(update, "expires_at = '2261-12-31', acquired_at = '1970-01-02'"), sprintf(wait, "since = '1970-01-02', keep_until = '2261-12-31', weight = 1073741824"),
		sprintf(permit, 1073741824),
		"SELECT "+here+".wake_next('n', 0)"), nil)
	if token := value[int64](g, "SELECT token FROM pglock.distributed_locks WHERE name = 'n'"); token != limit+2 {
		t.Errorf("the token is %d", token)
	}
}

// takeovers finds the statements that change tokens in a text of SQL or Go, and of those the ones that
// do not lock the row FOR UPDATE, neither themselves nor earlier in the same function.
func takeovers(text string) (all, unlocked []string) {
	text = regexp.MustCompile(`(?m)^\s*--.*$`).ReplaceAllString(text, "")
	for _, s := range regexp.MustCompile("[;`]|\"\n").Split(text, -1) {
		if !regexp.MustCompile(`(?is)\bUPDATE\s+(ONLY\s+)?\S*distributed_locks\b.*?\bSET\b[^;]*?\btoken\s*=\s*[^=]|\bDO\s+UPDATE\s+SET\b[^;]*?\btoken\s*=`).MatchString(s) || !strings.Contains(s, "distributed_locks") {
			continue
		}
		if where := regexp.MustCompile(`(?is)\bSET\b(.*?)(\bWHERE\b|\bFROM\b|$)`).FindStringSubmatch(s); where == nil || !regexp.MustCompile(`(?i)\btoken\s*=`).MatchString(where[1]) {
			continue
		}
		all = append(all, s)
		before := text[:strings.Index(text, s)]
		body := ""
		if i := strings.LastIndex(before, "AS $$"); i > strings.LastIndex(before, "\n$$;") {
			body = before[i:]
		}
		if !regexp.MustCompile(`(?is)\bFOR\s+UPDATE\b`).MatchString(body + s) {
			unlocked = append(unlocked, s)
		}
	}
	return all, unlocked
}

// TestTokensChangeUnderALock: a takeover changes no key column, so it meets a guard's FOR KEY SHARE only
// if it has locked the row FOR UPDATE before. Each statement of this module that changes a token does.
func TestTokensChangeUnderALock(t *testing.T) {
	t.Parallel()
	found := 0
	for _, dir := range []string{"../leasetable", "../leasetable/internal/store", "../leasetable/internal/store/sql", "../migrations", "../pglock", "."} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := file.Name()
			if strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".sql") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			all, unlocked := takeovers(string(text))
			found += len(all)
			for _, s := range unlocked {
				t.Errorf("%s/%s changes a token without FOR UPDATE: %s", dir, name, s)
			}
		}
	}
	if found < 2 {
		t.Errorf("control: %d statements change tokens", found)
	}
	for text, n := range map[string]int{
		"UPDATE pglock.distributed_locks SET token = 5 WHERE name = 'n'":                                                       1,
		"UPDATE pglock.distributed_locks AS l\nSET version = 1,\n token = l.token + 1\nFROM x":                                 1,
		"INSERT INTO pglock.distributed_locks VALUES (1) ON CONFLICT (name) DO UPDATE SET token = 1":                           1,
		"UPDATE pglock.distributed_locks SET version = 1 WHERE token = 5":                                                      0,
		"WITH l AS (SELECT FROM pglock.distributed_locks FOR UPDATE) UPDATE pglock.distributed_locks SET token = 5 WHERE true": 0,
	} {
		if _, unlocked := takeovers(text); len(unlocked) != n {
			t.Errorf("control: %q has %d", text, len(unlocked))
		}
	}
}
