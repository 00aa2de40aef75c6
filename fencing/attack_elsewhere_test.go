package fencing_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// attack runs each of the attacks, without a grant and with the attacker's own, and fails the test
// unless it is refused and changes no row of the other lock. In the statements {t} is the table, {m}
// the attacker's schema, {forge} and {huge} set what a holder's transaction has, {clear} clears it.
func (b battlefield) attack(attacks map[string][]string) {
	b.t.Helper()
	replace := strings.NewReplacer("{t}", b.table, "{m}", b.mine, "{forge}", b.forge("n2", b.other.Token), "{huge}", b.forge("n2", huge), "{clear}", b.clear())
	for what, statements := range attacks {
		for who, first := range map[string][]string{"without a grant": nil, "with its own": {b.bindSQL(b.own)}} {
			b.rows()
			before := b.theirs()
			all := append([]string{}, first...)
			for _, s := range statements {
				all = append(all, replace.Replace(s))
			}
			refused(b.t, what+", "+who, b.run(b.attacker, all...))
			if after := b.theirs(); after != before {
				b.t.Errorf("%s, %s: the other rows were %s and are %s", what, who, before, after)
			}
			if odd := value[int](b.fixture, sprintf("SELECT count(*) FROM %s WHERE fence_token NOT IN (%d, %d)", b.table, b.own.Token, b.other.Token)); odd != 0 {
				b.t.Errorf("%s, %s: forged tokens: %s", what, who, b.dump(b.table))
			}
		}
	}
}

// allows fails the test unless the attacker's honest statement, with its own grant, passes.
func (b battlefield) allows(statement string) {
	b.t.Helper()
	b.rows()
	want(b.t, "control: "+statement, b.run(b.attacker, b.bindSQL(b.own), strings.ReplaceAll(statement, "{t}", b.table)), nil)
	if v := value[int](b.fixture, "SELECT v FROM "+b.table+" WHERE id = 1"); v != 7 {
		b.t.Errorf("control: %s: the row has %d", statement, v)
	}
}

// TestSecondRoundRowSecurity: policies call functions of the attacker's while a statement runs, and hide
// rows from it. The fence judges all rows that were written.
func TestSecondRoundRowSecurity(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBattlefield(t, opts...)
			role := schema.Quote(pgtest.RoleOf(b.attacker))
			want(t, "a function", b.run(b.attacker, sprintf("CREATE FUNCTION %s.sees(int) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RETURN %s <> ''; END $f$", b.mine, b.forge("n2", b.other.Token))), nil)
			b.sql("ALTER TABLE " + b.table + " ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
			attacks := map[string][]string{
				"an UPDATE":             {"UPDATE {t} SET v = 666 WHERE id = 2"},
				"an UPDATE that forges": {"UPDATE {t} SET v = length({forge}) WHERE id = 2"},
				"a DELETE":              {"DELETE FROM {t} WHERE id = 2"},
				"an INSERT of a token":  {"INSERT INTO {t} (id, v, fence_token) VALUES (2, 666, 9000000000000000000) ON CONFLICT (id) DO UPDATE SET v = length({huge})"},
				"a TRUNCATE":            {"SELECT {forge}", "TRUNCATE {t}"},
			}
			for what, policy := range map[string]string{
				"that forges":           "USING (" + b.mine + ".sees(id)) WITH CHECK (" + b.mine + ".sees(id))",
				"for everything":        "USING (true)",
				"that hides newer rows": "USING (coalesce(fence_token, 0) <> 0 OR id < 3)",
			} {
				b.sql("CREATE POLICY p ON " + b.table + " TO " + role + " " + policy)
				t.Log("a policy " + what)
				b.attack(attacks)
				if what != "that forges" {
					b.allows("UPDATE {t} SET v = 7 WHERE id = 1")
				}
				b.sql("DROP POLICY p ON " + b.table)
			}
			// A policy hides the newer row from the one who truncates: it must not go unseen.
			b.sql("CREATE POLICY p ON " + b.table + " TO " + role + " USING (id = 1)")
			b.rows()
			if err := b.run(b.attacker, b.bindSQL(b.own), "TRUNCATE "+b.table); err == nil {
				t.Error("TRUNCATE removed rows of a newer grant that a policy hid")
			}
			b.allows("UPDATE {t} SET v = 7")
		})
	}
}

// TestSecondRoundGeneratedColumns: a generated column is computed after the row was stamped, by a function
// that changes the settings for the next row.
func TestSecondRoundGeneratedColumns(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBattlefield(t, opts...)
			b.sql("GRANT USAGE ON SCHEMA " + b.mine + " TO PUBLIC")
			forge := b.forge("n2", b.other.Token)
			want(t, "a function that writes", b.run(b.attacker, sprintf("CREATE FUNCTION %s.writes() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN PERFORM %s; UPDATE %s SET v = 665 WHERE id = 2; END $f$", b.mine, forge, b.table)), nil)
			for what, body := range map[string]string{
				"forges":                    "PERFORM {forge}; RETURN 1;",
				"forges a token for others": "PERFORM {huge}; RETURN 1;",
				"clears":                    "PERFORM {clear}; RETURN 1;",
				"writes":                    "IF v = 666 THEN PERFORM {m}.writes(); END IF; RETURN 1;",
			} {
				body = strings.NewReplacer("{m}", b.mine, "{forge}", forge, "{huge}", b.forge("n2", huge), "{clear}", b.clear()).Replace(body)
				want(t, what, b.run(b.attacker, sprintf("CREATE FUNCTION %s.of(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN IF v = 7 THEN RETURN 7; END IF; %s END $f$", b.mine, body)), nil)
				b.sql("SET session_replication_role = replica; DELETE FROM " + b.table + "; RESET session_replication_role")
				b.sql("ALTER TABLE " + b.table + " ADD computed int GENERATED ALWAYS AS (" + b.mine + ".of(v)) STORED")
				t.Log("a generated column that " + what)
				b.attack(map[string][]string{
					"an UPDATE":        {"UPDATE {t} SET v = 666 WHERE id = 2"},
					"of several rows":  {"UPDATE {t} SET v = 666"},
					"with its own row": {"UPDATE {t} SET v = 666 WHERE id IN (1, 2)"},
					"an INSERT":        {"INSERT INTO {t} (id, v) VALUES (2, 666) ON CONFLICT (id) DO UPDATE SET v = 666"},
				})
				b.allows("UPDATE {t} SET v = 7 WHERE id = 1")
				b.sql("ALTER TABLE " + b.table + " DROP computed")
				want(t, what, b.run(b.attacker, "DROP FUNCTION "+b.mine+".of(int)"), nil)
			}
		})
	}
}

// TestSecondRoundOtherSessions: dblink and postgres_fdw write in sessions of their own, which have
// bound nothing, also if they are told what the first one has bound.
func TestSecondRoundOtherSessions(t *testing.T) {
	t.Parallel()
	b := newBattlefieldOn(t, pgtest.PoolOn(t, pgtest.Database(t)))
	config := b.attacker.Config().ConnConfig
	role := schema.Quote(pgtest.RoleOf(b.attacker))
	here := sprintf("host=127.0.0.1 port=%d dbname=%s user=%s password=%s options='-c lock_timeout=3s -c idle_in_transaction_session_timeout=3s'", value[int](b.fixture, "SELECT inet_server_port()"),
		keyword(value[string](b.fixture, "SELECT current_database()")), keyword(config.User), keyword(config.Password))
	b.sql("CREATE EXTENSION dblink; CREATE EXTENSION postgres_fdw")
	b.sql("GRANT EXECUTE ON FUNCTION dblink_connect_u(text, text) TO " + role)
	names := settings(b.fixture)
	copied := sprintf("SELECT set_config('%[1]s', %%L, true), set_config('%[2]s', %%L, true)", names["grants"], names["token"])
	far := func(s string) string { return "SELECT public.dblink_exec('far', " + literal(s) + ")" }
	open := "SELECT CASE WHEN 'far' = ANY (public.dblink_get_connections()) THEN public.dblink_disconnect('far') END, public.dblink_connect_u('far', " + literal(here) + ")"
	bind := far("DO $d$ BEGIN " + strings.Replace(b.bindSQL(b.own), "SELECT", "PERFORM", 1) + "; END $d$")
	told := func(s string) string {
		return sprintf("SELECT public.dblink_exec('far', format($c$DO $d$ BEGIN %s; END $d$; %s$c$, current_setting('%s', true), current_setting('%s', true)))",
			strings.Replace(copied, "SELECT", "PERFORM", 1), strings.ReplaceAll(s, "%", "%%"), names["grants"], names["token"])
	}
	write := "UPDATE " + b.table + " SET v = 666 WHERE id = 2"
	disconnect := "SELECT public.dblink_disconnect('far')"
	b.attack(map[string][]string{
		"dblink":                      {open, far(write)},
		"dblink, forged":              {open, far("BEGIN"), far("DO $d$ BEGIN PERFORM " + b.forge("n2", b.other.Token) + "; END $d$"), far(write)},
		"dblink, with what was bound": {open, far("BEGIN"), told(write)},
		"dblink in an expression":     {open, "UPDATE {t} SET v = length(public.dblink_exec('far', " + literal(write) + ")) WHERE id = 1"},
		"dblink that ends triggers":   {open, far("SET session_replication_role = replica"), far(write)},
		"dblink with another grant":   {open, far("BEGIN"), bind, far(write)},
	})
	b.rows()
	want(t, "control: dblink with a grant of its own", b.run(b.attacker, open, far("BEGIN"), bind, far("UPDATE "+b.table+" SET v = 7 WHERE id = 1"), far("COMMIT"), disconnect), nil)
	b.holds(b.table, "(1,7,,%d) (2,0,,%d) (3,0,,%[2]d)", b.own.Token, b.other.Token)

	t.Cleanup(func() {
		if _, err := b.pool.Exec(context.Background(), "DROP EXTENSION postgres_fdw CASCADE"); err != nil {
			t.Error(err)
		}
	})
	var space, table string
	if err := b.pool.QueryRow(t.Context(), "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE pg_class.oid = $1::text::regclass", b.table).Scan(&space, &table); err != nil {
		t.Fatal(err)
	}
	forged := strings.Repeat("0", 64) + sprintf(`{"lock":"n2","grants":{"n2":%d}}`, b.other.Token)
	for name, options := range map[string]string{"loop": "-c lock_timeout=3s", "forging": sprintf("-c lock_timeout=3s -c %s=%s -c %s=%d", names["grants"], forged, names["token"], b.other.Token)} {
		want(t, "a server", b.run(b.pool, sprintf("CREATE SERVER %s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '%d', dbname %s, options %s)", // as it is
			name, value[int](b.fixture, "SELECT inet_server_port()"), literal(value[string](b.fixture, "SELECT current_database()")), literal(options))), nil)
		b.sql(sprintf("CREATE USER MAPPING FOR %s SERVER %s OPTIONS (user %s, password %s, password_required 'false')", role, name, literal(config.User), literal(config.Password)))
		b.sql(sprintf("CREATE FOREIGN TABLE %s.%s (id int, v int, parent int, fence_token bigint) SERVER %[2]s OPTIONS (schema_name %s, table_name %s)",
			b.mine, name, literal(space), literal(table)))
		b.sql(sprintf("GRANT ALL ON %s.%s TO %s", b.mine, name, role))
		b.rows()
		if n := value[int](fixture{t: t, pool: b.attacker, schema: b.schema}, sprintf("SELECT count(*) FROM %s.%s", b.mine, name)); n != 3 {
			t.Errorf("control: %d rows are read through %s", n, name)
		}
		b.attack(map[string][]string{
			"postgres_fdw, " + name:                {"UPDATE {m}." + name + " SET v = 666 WHERE id = 2"},
			"postgres_fdw, forged, " + name:        {"SELECT {forge}", "UPDATE {m}." + name + " SET v = 666 WHERE id = 2"},
			"postgres_fdw, a deletion, " + name:    {"DELETE FROM {m}." + name},
			"postgres_fdw, an insertion, " + name:  {"INSERT INTO {m}." + name + " (id, v, fence_token) VALUES (4, 666, 9000000000000000000)"},
			"postgres_fdw in a write, " + name:     {"WITH w AS (UPDATE {m}." + name + " SET v = 666 WHERE id = 2 RETURNING 1) UPDATE {t} SET v = 1 FROM w WHERE id = 1"},
			"postgres_fdw row by row, " + name:     {"UPDATE {m}." + name + " SET v = length({forge}) WHERE id = 2 AND random() >= 0"},
			"postgres_fdw, another token, " + name: {"UPDATE {m}." + name + " SET fence_token = fence_token + 1 WHERE id = 2"},
		})
	}
	b.allows("UPDATE {t} SET v = 7 WHERE id = 1")
}

// keyword quotes a value of a connection string.
func keyword(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
