package fencing_test

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// battlefield is a protected table whose rows belong to n1, n2 and n3, and an attacker with all rights on it but
// its owner's, with a schema of its own, and with a grant of n1.
type battlefield struct {
	fixture
	attacker    *pgxpool.Pool
	table, mine string
	own, other  fencing.Fence // of n1, and of n2
}

func newBattlefield(t *testing.T, opts ...fencing.Option) battlefield {
	t.Helper()
	return newBattlefieldOn(t, pgtest.Pool(t), opts...)
}

func newBattlefieldOn(t *testing.T, pool *pgxpool.Pool, opts ...fencing.Option) battlefield {
	t.Helper()
	g := newFixtureOn(t, pool)
	b := battlefield{fixture: g, attacker: g.writer, table: g.elsewhereUnprotected("t"), mine: schema.Quote(pgtest.SchemaName(t))}
	g.sql("ALTER TABLE " + b.table + " ADD parent int")
	g.protect(b.table, opts...)
	role := schema.Quote(pgtest.RoleOf(b.attacker))
	g.sql("CREATE SCHEMA " + b.mine + " AUTHORIZATION " + role)
	g.sql("GRANT TEMPORARY ON DATABASE " + schema.Quote(value[string](g, "SELECT current_database()")) + " TO " + role)
	b.own, b.other = g.grant("n1", time.Hour), g.grant("n2", time.Hour)
	return b
}

// theirs returns the rows that are not the attacker's.
func (b battlefield) theirs() string {
	b.t.Helper()
	return value[string](b.fixture, "SELECT string_agg(t::text, ' ' ORDER BY id) FROM "+b.table+" AS t WHERE id <> 1")
}

// rows puts the rows as they were: two of the other grant, one of the attacker's own.
func (b battlefield) rows() {
	b.t.Helper()
	b.sql(sprintf("SET session_replication_role = replica; DELETE FROM %s; INSERT INTO %[1]s (id, v, fence_token) VALUES (1, 0, %d), (2, 0, %d), (3, 0, %[3]d); RESET session_replication_role",
		b.table, b.own.Token, b.other.Token))
}

// TestSecondRound attacks the fence by everything that runs, or makes others run, between the start of a
// statement and the commit. No row of the other grant may change.
func TestSecondRound(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBattlefield(t, opts...)
			forge, forgeOther, clear := b.forge("n2", b.other.Token), b.forge("n2", huge), b.clear()
			bind := b.bindSQL(b.own)
			one := func(s string) string {
				return strings.NewReplacer("{t}", b.table, "{m}", b.mine, "{forge}", forge, "{huge}", forgeOther, "{clear}", clear, "{bind}", bind).Replace(s)
			}
			for _, s := range []string{
				"CREATE FUNCTION {m}.forges() RETURNS text LANGUAGE sql AS $f$ SELECT {forge} $f$",
				"CREATE FUNCTION {m}.nested() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; RETURN 1; END $f$",
				"CREATE FUNCTION {m}.swallows() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; BEGIN UPDATE {t} SET v = 666 WHERE id = 2; EXCEPTION WHEN OTHERS THEN NULL; END; RETURN 1; END $f$",
				"CREATE FUNCTION {m}.definer() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; RETURN 1; END $f$",
				"CREATE TABLE {m}.source (id int, v int)",
				"INSERT INTO {m}.source VALUES (2, 666)",
				"CREATE FUNCTION {m}.on_source() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; PERFORM {clear}; RETURN NULL; END $f$",
				"CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON {m}.source DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {m}.on_source()",
				"CREATE TRIGGER soon AFTER DELETE ON {m}.source FOR EACH ROW EXECUTE FUNCTION {m}.on_source()",
				"CREATE VIEW {m}.v AS SELECT id, v FROM {t}",
				"CREATE VIEW {m}.w AS SELECT id, v, {m}.forges() AS f FROM {t}",
				"CREATE TABLE {m}.ruled (id int)",
				"CREATE RULE r AS ON INSERT TO {m}.ruled DO INSTEAD UPDATE {t} SET v = length({m}.forges()) WHERE id = NEW.id",
				"CREATE RULE s AS ON DELETE TO {m}.ruled DO ALSO UPDATE {t} SET v = 666 WHERE id = 2",
				"INSERT INTO {m}.source VALUES (2, 1)",
				"CREATE TYPE {m}.pair AS (a int, b text)",
				"CREATE FUNCTION {m}.commits() RETURNS text LANGUAGE plpgsql AS $f$ BEGIN RETURN {forge}; END $f$",
				"CREATE PROCEDURE {m}.across() LANGUAGE plpgsql AS $f$ DECLARE g text; k text; BEGIN {perform}; {keep}; COMMIT; {restore}; UPDATE {t} SET v = 666 WHERE id = 2; END $f$",
			} {
				names := settings(b.fixture)
				s = strings.ReplaceAll(s, "{perform}", "PERFORM"+strings.TrimPrefix(b.bindSQL(b.other), "SELECT"))
				s = strings.ReplaceAll(s, "{keep}", sprintf("g := current_setting('%s'); k := current_setting('%s')", names["grants"], names["token"]))
				s = strings.ReplaceAll(s, "{restore}", sprintf("PERFORM set_config('%s', g, true), set_config('%s', k, true)", names["grants"], names["token"]))
				if err := b.run(b.attacker, one(s)); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
			}
			attacks := map[string][]string{
				"an expression":                       {"UPDATE {t} SET v = length({forge}) WHERE id = 2"},
				"a function in an expression":         {"UPDATE {t} SET v = length({m}.forges()) WHERE id = 2"},
				"a nested statement":                  {"UPDATE {t} SET v = {m}.nested() WHERE id = 1"},
				"a nested statement in a query":       {"SELECT {m}.nested()"},
				"a swallowed refusal":                 {"SELECT {m}.swallows()", "SELECT {clear}"},
				"a definer function":                  {"SELECT {m}.definer()"},
				"a trigger of another table":          {"DELETE FROM {m}.source"},
				"a deferred trigger":                  {"UPDATE {m}.source SET v = 5"},
				"a deferred trigger, made immediate":  {"SET CONSTRAINTS ALL DEFERRED", "UPDATE {m}.source SET v = 5", "SET CONSTRAINTS ALL IMMEDIATE"},
				"a view":                              {"UPDATE {m}.v SET v = length({forge}) WHERE id = 2"},
				"a view that forges":                  {"UPDATE {m}.w SET v = 666 WHERE id = 2 AND f <> ''"},
				"a rule":                              {"INSERT INTO {m}.ruled VALUES (2)"},
				"a rule beside a statement":           {"SELECT {forge}", "DELETE FROM {m}.ruled"},
				"a savepoint":                         {"SAVEPOINT a", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2", "RELEASE a"},
				"two updates in one statement":        {"WITH a AS (UPDATE {t} SET v = 1 WHERE id = 1 RETURNING {forge} AS x), b AS (UPDATE {t} SET v = 666 WHERE id = 2 RETURNING 1) SELECT * FROM a, b"},
				"a write, then a forged one":          {"WITH a AS (UPDATE {t} SET v = 1 WHERE id = 1 RETURNING {forge} AS x) UPDATE {t} SET v = length(x) FROM a WHERE {t}.id = 2"},
				"a forged one, then a clean end":      {"WITH a AS (UPDATE {t} SET v = 666 WHERE id = 2 AND {forge} <> '' RETURNING id) SELECT {clear} FROM a"},
				"delete and insert in one statement":  {"WITH a AS (DELETE FROM {t} WHERE id = 2 AND {forge} <> '' RETURNING id) INSERT INTO {t} (id, v) SELECT id + 100, 666 FROM a"},
				"on conflict":                         {"INSERT INTO {t} (id, v) VALUES (2, 666) ON CONFLICT (id) DO UPDATE SET v = length({forge})"},
				"on conflict, with a huge token":      {"INSERT INTO {t} (id, v, fence_token) VALUES (2, 666, 9000000000000000000) ON CONFLICT (id) DO UPDATE SET fence_token = excluded.fence_token, v = length({huge})"},
				"a cursor":                            {"DECLARE c CURSOR FOR SELECT id FROM {t} WHERE id = 2 FOR UPDATE", "FETCH c", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE CURRENT OF c"},
				"a cursor that outlives its commit":   {"DECLARE c CURSOR WITH HOLD FOR SELECT {m}.nested()"},
				"a prepared statement":                {"PREPARE x_{n} AS UPDATE {t} SET v = length({forge}) WHERE id = 2", "EXECUTE x_{n}"},
				"a block":                             {"DO $d$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; END $d$"},
				"a loop over a writing statement":     {"DO $d$ DECLARE r record; BEGIN FOR r IN UPDATE {t} SET v = length({forge}) WHERE id = 2 RETURNING id LOOP PERFORM {clear}; EXIT; END LOOP; END $d$"},
				"another role":                        {"SET LOCAL ROLE {role}", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"the session's replication role":      {"SET LOCAL session_replication_role = replica", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"no triggers":                         {"ALTER TABLE {t} DISABLE TRIGGER ALL", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"decoys of the transition tables":     {"CREATE TEMP TABLE new_rows (id int, v int, fence_token bigint) ON COMMIT DROP", "CREATE TEMP TABLE old_rows (id int, v int, fence_token bigint) ON COMMIT DROP", "SET LOCAL search_path = pg_temp, pg_catalog", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"decoys of types":                     {"CREATE DOMAIN pg_temp.text AS pg_catalog.int4", "CREATE DOMAIN pg_temp.int8 AS pg_catalog.text", "CREATE DOMAIN pg_temp.bigint AS pg_catalog.text", "SET LOCAL search_path = pg_temp, pg_catalog", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2", "ROLLBACK"},
				"an odd way to read literals":         {"SET LOCAL standard_conforming_strings = off", "SET LOCAL backslash_quote = on", "SET LOCAL transform_null_equals = on", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"little memory":                       {"SET LOCAL work_mem = '64kB'", "UPDATE {t} SET v = length({forge}) WHERE id IN (SELECT 2 FROM generate_series(1, 5000))"},
				"parallel workers":                    {"SET LOCAL parallel_setup_cost = 0", "SET LOCAL parallel_tuple_cost = 0", "SET LOCAL min_parallel_table_scan_size = 0", "INSERT INTO {t} (id, v) SELECT DISTINCT s.id + 1000, length({forge}) FROM {m}.source AS s"},
				"a lock for the other's name":         {"SELECT {forge}", "{bind}", "UPDATE {t} SET v = 666 WHERE id = 2"},
				"a bind in the statement":             {"UPDATE {t} SET v = 666 WHERE id IN (1, 2) AND (({bindexpr}) IS NULL) IS NOT NULL"},
				"a token for one row":                 {"UPDATE {t} SET v = length({token}) WHERE id = 1 RETURNING {back}"},
				"a token for one row, in a query":     {"WITH w AS (UPDATE {t} SET v = length({token}) WHERE id = 1 RETURNING 1) SELECT {back} FROM w"},
				"a token for a new row":               {"WITH w AS (INSERT INTO {t} (id, v) SELECT 2000, length({token}) RETURNING 1) SELECT {back} FROM w"},
				"a truncation":                        {"SELECT {forge}", "TRUNCATE {t}"},
				"a truncation of another with it":     {"SELECT {forge}", "TRUNCATE {m}.source, {t}"},
				"a deletion, a rollback and the rest": {"SAVEPOINT a", "DELETE FROM {t} WHERE id = 1", "ROLLBACK TO a", "SELECT {forge}", "DELETE FROM {t} WHERE id = 2"},
			}
			if b.serverVersion() >= mergeSince {
				attacks["merge"] = []string{"MERGE INTO {t} AS t USING (SELECT 2 AS id, {forge} AS x) AS s ON s.id = t.id WHEN MATCHED AND x <> '' THEN UPDATE SET v = 666"}
				attacks["merge of all kinds"] = []string{"MERGE INTO {t} AS t USING (SELECT i AS id, {forge} AS x FROM generate_series(1, 5) AS i) AS s ON s.id = t.id WHEN MATCHED AND s.id = 2 THEN DELETE WHEN MATCHED AND x <> '' THEN UPDATE SET v = 666 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, length({clear}))"}
			}
			role := schema.Quote(pgtest.RoleOf(b.attacker))
			// The token alone is changed, and put back before the rows are judged: the seal is whole again.
			token := sprintf("concat(set_config('%s', '%d', true), set_config('%s', '%[2]d', true))", settings(b.fixture)["token"], huge, settings(b.fixture)["stamp"])
			back := sprintf("set_config('%s', '%d', true)", settings(b.fixture)["token"], b.own.Token)
			theirs := func() string {
				return value[string](b.fixture, "SELECT string_agg(t::text, ' ' ORDER BY id) FROM "+b.table+" AS t WHERE id IN (2, 3)")
			}
			// These pass because they have no effect: a refusal is swallowed, or the stamp replaces the token.
			harmless := "a swallowed refusal"
			if kind == "named" {
				harmless += ", a token for one row, in a query"
			}
			prepared := 0
			for what, attack := range attacks {
				for i := range attack {
					attack[i] = strings.NewReplacer("{role}", role, "{token}", token, "{back}", back, "{bindexpr}", strings.Replace(bind, "SELECT", "SELECT 1 FROM", 1)).Replace(one(attack[i]))
				}
				for who, first := range map[string][]string{"without a grant": nil, "with its own": {bind}} {
					b.rows()
					before := theirs()
					prepared++
					statements := append([]string{}, first...)
					for _, s := range attack {
						statements = append(statements, strings.ReplaceAll(s, "{n}", strconv.Itoa(prepared)))
					}
					if err := b.run(b.attacker, statements...); err != nil || !strings.Contains(harmless, what) {
						refused(t, what+", "+who, err)
					}
					if after := theirs(); after != before {
						t.Errorf("%s, %s: rows of the other grant were %s, and are %s", what, who, before, after)
					}
					if odd := value[int](b.fixture, sprintf("SELECT count(*) FROM %s WHERE coalesce(fence_token, 0) NOT IN (0, %d, %d) OR id > 3 AND fence_token <> %[2]d", b.table, b.own.Token, b.other.Token)); odd != 0 {
						t.Errorf("%s, %s: made up tokens: %s", what, who, b.dump(b.table))
					}
				}
			}
			b.rows()
			before := theirs()
			_, err := b.attacker.Exec(t.Context(), "CALL "+b.mine+".across()")
			refused(t, "a grant that was bound before a commit in a procedure", fencing.Explain(err))
			if after := theirs(); after != before {
				t.Errorf("across a commit: %s became %s", before, after)
			}
			want(t, "control: its own row", b.run(b.attacker, bind, one("UPDATE {t} SET v = 7 WHERE id = 1")), nil)
			want(t, "control: the other's row", b.run(b.attacker, b.bindSQL(b.other), one("UPDATE {t} SET v = 7 WHERE id = 2")), nil)
		})
	}
}

// TestSecondRoundCascades forges in a statement on the table that a protected one refers to.
func TestSecondRoundCascades(t *testing.T) {
	t.Parallel()
	for action, set := range map[string]string{"CASCADE": "", "SET NULL": "", "SET DEFAULT": ""} {
		g := newFixture(t)
		parent := g.table("parent", "(id int PRIMARY KEY, v int)")
		child := g.table("child", "(id int PRIMARY KEY, parent int DEFAULT NULL REFERENCES "+parent+" ON DELETE "+action+" ON UPDATE "+action+")"+set)
		g.protect(child)
		other, f := g.grant("other", time.Hour), g.grant("n", time.Hour)
		want(t, "rows", g.as(f, "INSERT INTO "+parent+" VALUES (1)", "INSERT INTO "+child+" (id, parent) VALUES (5, 1)"), nil)
		before := g.dump(child)
		for _, first := range [][]string{nil, {g.bindSQL(other)}} {
			for _, attack := range []string{
				"DELETE FROM " + parent + " WHERE " + g.forge("n", f.Token) + " <> ''",
				"UPDATE " + parent + " SET id = length(" + g.forge("n", huge) + ")",
				"WITH p AS (DELETE FROM " + parent + " RETURNING id) UPDATE " + child + " SET id = 6 FROM p WHERE " + g.forge("n", f.Token) + " <> ''",
			} {
				refused(t, action+": "+attack, g.run(g.writer, append(first, attack)...))
				if after := g.dump(child); after != before {
					t.Errorf("%s: %s left %s", action, attack, after)
				}
			}
		}
		want(t, action+": control: the holder", g.as(f, "UPDATE "+parent+" SET id = 2"), nil)
		want(t, action+": control: the holder", g.as(f, "DELETE FROM "+parent), nil)
	}
}

// TestSecondRoundPartitions: columns stand in another order in a partition, and statements name the table, the
// partition, or a partition in between.
func TestSecondRoundPartitions(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	q := schema.Quote(g.schema) + "."
	table := g.table("t", "(id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
	g.sql("CREATE TABLE pglock.mid (junk text, v int, id int NOT NULL) PARTITION BY RANGE (id)")
	g.sql("ALTER TABLE pglock.mid DROP junk; ALTER TABLE " + table + " ATTACH PARTITION pglock.mid FOR VALUES FROM (0) TO (10)")
	g.sql("CREATE TABLE pglock.leaf (more text, id int NOT NULL, fence_token bigint, v int); ALTER TABLE pglock.leaf DROP more, DROP fence_token")
	g.sql("ALTER TABLE pglock.mid ATTACH PARTITION pglock.leaf FOR VALUES FROM (0) TO (10)")
	g.sql("CREATE TABLE pglock.rest PARTITION OF " + table + " DEFAULT")
	g.protect(table, fencing.NamedBy("n{id}"))
	one, two := g.grant("n1", time.Hour), g.grant("n2", time.Hour)
	for _, target := range []string{table, q + "mid", q + "leaf"} {
		g.open(target)
		for _, write := range []string{"INSERT INTO %s (id, v) VALUES (2, 5)", "UPDATE %s SET v = 5 WHERE id = 1", "INSERT INTO %s (id, v) VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = 5", "DELETE FROM %s WHERE id = 1"} {
			sql := sprintf(write, target)
			if strings.Contains(sql, "CONFLICT") && target == q+"leaf" {
				continue
			}
			g.sql("SET session_replication_role = replica; DELETE FROM " + table + sprintf("; INSERT INTO %s (id, v, fence_token) VALUES (1, 0, %d); RESET session_replication_role", table, one.Token))
			holder, stranger := one, two
			if strings.Contains(sql, "(2, 5)") {
				holder, stranger = two, one
			}
			before := g.dump(table)
			forged := strings.NewReplacer("v = 5", "v = length("+g.forge(holder.Name, holder.Token)+")", "(2, 5)", "(2, length("+g.forge(holder.Name, holder.Token)+"))").Replace(sql)
			refused(t, sql+" without a grant", g.run(g.writer, forged))
			refused(t, sql+" with another lock's", g.run(g.writer, g.bindSQL(stranger), forged))
			if after := g.dump(table); after != before {
				t.Errorf("%s left %s", forged, after)
			}
			want(t, "control: "+sql, g.as(holder, sql), nil)
		}
	}
	refused(t, "a row moves to a lock that is not bound", g.as(one, "INSERT INTO "+table+" VALUES (1, 0)", "UPDATE "+table+" SET id = 20"))
}

// TestSecondRoundWaits: an UPDATE that has waited for a newer grant's meets its row, not the one that it saw.
func TestSecondRoundWaits(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	early, late := g.grant("early", time.Hour), g.grant("late", time.Hour)
	want(t, "a row", g.as(early, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	for _, write := range []string{"UPDATE %s SET v = v + 10 WHERE id = 1", "DELETE FROM %s WHERE id = 1", "INSERT INTO %s VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = 10"} {
		first := g.bound(late)
		if _, err := first.Exec(t.Context(), "UPDATE "+table+" SET v = 5 WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- g.run(g.writer, g.bindSQL(early), sprintf(write, table)) }()
		pgtest.Eventually(t, 30*time.Second, "the earlier grant's write waits", func() bool {
			return value[bool](g, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = $1)", pgtest.RoleOf(g.writer))
		})
		if err := first.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, write, <-done, fencing.ErrStale)
		g.holds(table, "(1,5,%d)", late.Token)
		g.reset(table, early.Token)
	}
}

// TestSecondRoundTheKeyStaysSecret: no setting that a role may choose makes the server tell the key of the seals,
// nor any text that a writer gets to see.
func TestSecondRoundTheKeyStaysSecret(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	var key []byte
	if err := g.pool.QueryRow(t.Context(), g.named("SELECT secret FROM pglock.fencing_secret")).Scan(&key); err != nil || len(key) != 32 {
		t.Fatalf("the key has %d bytes: %v", len(key), err)
	}
	var mu sync.Mutex
	var said strings.Builder
	config := g.writer.Config().ConnConfig.Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		said.WriteString(n.Message + n.Detail + n.Where + n.InternalQuery)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, s := range []string{
		"SET client_min_messages = debug5", "SET debug_print_parse = on", "SET debug_print_rewritten = on", "SET debug_print_plan = on", "SET debug_pretty_print = off",
		"SET plan_cache_mode = force_custom_plan", "SET log_error_verbosity = default",
		"BEGIN", g.bindSQL(f), g.bindSQL(f), "INSERT INTO " + table + " VALUES (1, 0)", "UPDATE " + table + " SET v = 1", "COMMIT",
		"BEGIN", "SELECT " + g.forge("n", f.Token), "INSERT INTO " + table + " VALUES (2, 0)", "ROLLBACK",
	} {
		_, _ = conn.Exec(t.Context(), s, pgx.QueryExecModeSimpleProtocol) // some fail: what they say counts
	}
	var decimal []string
	for _, c := range key[:8] {
		decimal = append(decimal, strconv.Itoa(int(int8(c))))
	}
	mu.Lock()
	defer mu.Unlock()
	text := said.String()
	if !strings.Contains(text, "fencing_secret") && !strings.Contains(text, "TARGETENTRY") {
		t.Error("control: the server has not told its plans")
	}
	for form, part := range map[string]string{"hex": hex.EncodeToString(key[:8]), "a constant of a plan": strings.Join(decimal, " ")} {
		if strings.Contains(text, part) {
			t.Errorf("the server has told the key as %s", form)
		}
	}
}
