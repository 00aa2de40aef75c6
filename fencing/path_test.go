package fencing_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestWritersSearchPathDoesNotMatter: the triggers do not use the writer's own operators, functions
// and tables, wherever they are.
func TestWritersSearchPathDoesNotMatter(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	named := g.table("named", columns)
	g.protect(table)
	g.protect(named, fencing.NamedBy("n{id}"))
	evil := pgtest.SchemaName(t)
	q := schema.Quote(evil)
	role := schema.Quote(pgtest.RoleOf(g.writer))
	g.sql("CREATE SCHEMA " + q + "; GRANT ALL ON SCHEMA " + q + " TO " + role)
	early, late := g.grant("n1", time.Minute), g.grant("n2", time.Minute)
	want(t, "rows", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)", "INSERT INTO "+named+" VALUES (2, 0)"), nil)

	attack := []string{
		"CREATE FUNCTION " + q + ".yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"CREATE FUNCTION " + q + ".no(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
		"CREATE FUNCTION " + q + ".no(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
		"CREATE OPERATOR " + q + ".<= (FUNCTION = " + q + ".yes, LEFTARG = bigint, RIGHTARG = bigint)",
		"CREATE OPERATOR " + q + ".= (FUNCTION = " + q + ".yes, LEFTARG = bigint, RIGHTARG = bigint)",
		"CREATE OPERATOR " + q + ".> (FUNCTION = " + q + ".no, LEFTARG = bigint, RIGHTARG = bigint)",
		"CREATE OPERATOR " + q + ".<> (FUNCTION = " + q + ".no, LEFTARG = text, RIGHTARG = text)",
		"CREATE FUNCTION " + q + ".get(jsonb, text) RETURNS text LANGUAGE sql AS 'SELECT ''" + sprintf("%d", early.Token) + "'''",
		"CREATE OPERATOR " + q + ".->> (FUNCTION = " + q + ".get, LEFTARG = jsonb, RIGHTARG = text)",
		"CREATE FUNCTION " + q + ".current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''999999'''",
		"CREATE FUNCTION " + q + ".current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT ''999999'''",
		"CREATE DOMAIN " + q + ".text AS pg_catalog.text; CREATE DOMAIN " + q + ".jsonb AS pg_catalog.jsonb; CREATE DOMAIN " + q + ".bigint AS pg_catalog.int8",
		"CREATE TABLE " + q + ".distributed_locks (name pg_catalog.text, token pg_catalog.int8, expires_at timestamptz)",
		"INSERT INTO " + q + ".distributed_locks VALUES ('n1', 999999, 'infinity')",
		"CREATE TEMP TABLE distributed_locks (name pg_catalog.text, token pg_catalog.int8, expires_at timestamptz)",
		"INSERT INTO pg_temp.distributed_locks VALUES ('n1', 999999, 'infinity')",
		"CREATE TEMP TABLE fencing_high_water (resource pg_catalog.text, token pg_catalog.int8)",
	}
	g.sql("GRANT TEMPORARY ON DATABASE " + schema.Quote(value[string](g, "SELECT current_database()")) + " TO " + role)
	for _, path := range []string{q + ", pg_temp, pg_catalog", "pg_temp, " + q + ", pg_catalog"} {
		conn, err := pgx.ConnectConfig(t.Context(), g.writer.Config().ConnConfig)
		ok(t, err)
		defer conn.Close(t.Context())
		exec := func(sql string) error {
			_, err := conn.Exec(t.Context(), g.named(sql))
			return fencing.Explain(err)
		}
		for _, s := range attack {
			if err := exec(s); err != nil && !strings.Contains(err.Error(), "42") { // the second time they are there already
				t.Fatalf("%s: %v", s, err)
			}
		}
		ok(t, exec("SET search_path TO "+path))
		var deceived bool
		if err := conn.QueryRow(t.Context(), "SELECT 5::pg_catalog.int8 <= 4::pg_catalog.int8").Scan(&deceived); err != nil || !deceived {
			t.Fatalf("control: the attack does not work where nothing is qualified: %v, %v", deceived, err)
		}
		transaction := func(what string, wanted error, statements ...string) {
			t.Helper()
			ok(t, exec("BEGIN"))
			var err error
			for _, s := range statements {
				err = cmp.Or(err, exec(s))
			}
			want(t, path+": "+what, err, wanted)
			ok(t, exec("ROLLBACK"))
		}
		early, late := g.bindSQL(early), g.bindSQL(late)
		transaction("an older token", fencing.ErrStale, early, "UPDATE "+table+" SET v = 1")
		transaction("an older token deletes", fencing.ErrStale, early, "DELETE FROM "+table)
		transaction("another lock", fencing.ErrOtherLock, early, "UPDATE "+named+" SET v = 1")
		transaction("no grant", fencing.ErrUnfenced, "UPDATE "+table+" SET v = 1")
		transaction("a token of its own tables", fencing.ErrStale, "SELECT pglock.bind('n1', 999999)")
		transaction("the right one", nil, late, "UPDATE "+table+" SET v = 1", "UPDATE "+named+" SET v = 1")
		// The plans that the trigger has cached in this session are valid for other paths too.
		ok(t, exec("SET search_path TO DEFAULT"))
		transaction("an older token, on the usual path", fencing.ErrStale, early, "UPDATE "+table+" SET v = 1")
	}
}

// shadows creates another version of each operator and function that bind uses in the schema :here.
// They fail when they are called.
const shadows = `DO $do$
DECLARE
	o     record;
	here  text := :here;
	types text[] := '{text,int4,int8,bool,float8,numeric,timestamptz,interval,jsonb}';
BEGIN
	FOR o IN
		SELECT op.oprname, l.oid::regtype::text AS l, r.oid::regtype::text AS r, row_number() OVER () AS n
		FROM pg_operator AS op JOIN pg_type AS l ON l.oid = op.oprleft JOIN pg_type AS r ON r.oid = op.oprright
		WHERE op.oprnamespace = 'pg_catalog'::regnamespace AND l.typname = ANY (types) AND r.typname = ANY (types)
	LOOP
		EXECUTE format('CREATE FUNCTION %I.o%s(%s, %s) RETURNS boolean LANGUAGE plpgsql AS %L',
		               here, o.n, o.l, o.r, format('BEGIN RAISE EXCEPTION %L; END', 'deceived by ' || replace(o.oprname, '%', '%%')));
		EXECUTE format('CREATE OPERATOR %I.%s (FUNCTION = %I.o%s, LEFTARG = %s, RIGHTARG = %s)', here, o.oprname, here, o.n, o.l, o.r);
	END LOOP;
	FOR o IN
		SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args FROM pg_proc AS p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname = ANY
		      ('{set_config,current_setting,clock_timestamp,date_part,ceil,right}')
	LOOP
		EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS boolean LANGUAGE plpgsql AS %L',
		               here, o.proname, o.args, format('BEGIN RAISE EXCEPTION %L; END', 'deceived by ' || o.proname));
	END LOOP;
	EXECUTE format('CREATE FUNCTION %I.jsonb_build_object(text, int8) RETURNS jsonb LANGUAGE plpgsql AS %L', here, 'BEGIN RAISE EXCEPTION ''deceived''; END');
	EXECUTE format('CREATE DOMAIN %1$I.text AS pg_catalog.text CHECK (false); CREATE DOMAIN %1$I.int8 AS pg_catalog.int8 CHECK (false);
			CREATE DOMAIN %1$I.jsonb AS pg_catalog.jsonb CHECK (false); CREATE DOMAIN %1$I.timestamptz AS pg_catalog.timestamptz CHECK (false)', here);
END $do$`

// TestCallersSearchPathDoesNotMatterInBind: bind runs with its owner's rights and, for speed,
// without a search_path of its own.
func TestCallersSearchPathDoesNotMatterInBind(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	evil := pgtest.SchemaName(t)
	g.sql("CREATE SCHEMA " + schema.Quote(evil) + "; GRANT USAGE ON SCHEMA " + schema.Quote(evil) + " TO " + schema.Quote(pgtest.RoleOf(g.writer)))
	g.sql(strings.ReplaceAll(shadows, ":here", literal(evil)))
	path := "SELECT pg_catalog.set_config('search_path', " + literal(schema.Quote(evil)+", pg_catalog") + ", true)"
	for _, sql := range []string{"SELECT 1 < 2", "SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text", "SELECT clock_timestamp()", "SELECT 1::int8"} {
		if err := g.unbound(path, sql); err == nil {
			t.Errorf("control: %s is not deceived", sql)
		}
	}
	one, two := g.grant("1", time.Minute), g.grant("2", time.Minute)
	for name, statements := range map[string][]string{
		"one":          {path, g.bindSQL(one)},
		"two":          {path, g.bindSQL(one), g.bindSQL(two)},
		"with a limit": {"SET LOCAL idle_in_transaction_session_timeout = '5s'", path, g.bindSQL(one)},
	} {
		want(t, name, g.run(g.writer, statements...), nil)
	}
	two.Name = "1"
	want(t, "a forged one", g.run(g.writer, path, g.bindSQL(two)), fencing.ErrStale)
}
