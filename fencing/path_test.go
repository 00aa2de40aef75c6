package fencing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

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
