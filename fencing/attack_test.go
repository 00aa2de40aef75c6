package fencing_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// TestP51_Attacks: roles with few rights try to change rows of a grant that they don't have, in
// each kind of protected table, by everything that runs, or makes others run, between the start of
// a statement and the commit.
func TestP51_Attacks(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"any lock", "named", "permissive", "permissive, partitioned", "named, partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBattlefield(t, pgtest.Pool(t), kind)
			for _, s := range scenes(b.serverVersion()) {
				b.play(s)
			}
		})
	}
}

const everyone = "outsider|looker|writer|holder|user's holder"

// ownPath puts the objects of the attacker before those of the server.
const ownPath = "SET LOCAL search_path TO {m}, pg_temp, pg_catalog"

// ownWrite is a write to the holder's own row that no operator of ownPath deceives.
const ownWrite = "UPDATE {t} SET v = 7 WHERE id OPERATOR(pg_catalog.=) 1"

// shadows creates in {m} another version of each operator, function and type that the fence may use.
// They fail when they are used.
const shadows = `DO $do$
DECLARE
	o     record;
	here  text := (SELECT nspname FROM pg_namespace WHERE oid = $n${m}$n$::regnamespace);
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
	FOR o IN SELECT unnest('{text,int8,jsonb,timestamptz}'::text[]) AS name LOOP
		EXECUTE format('CREATE DOMAIN %I.%s AS pg_catalog.%s CHECK (false)', here, o.name, o.name);
	END LOOP;
END $do$`

// scenes returns all attacks that are made of statements.
func scenes(version int) []scene {
	expressions := []attack{
		a("UPDATE", "PGL02", "UPDATE {t} SET v = 666 WHERE {forge} <> ''"),
		a("UPDATE, assigned", "PGL02", "UPDATE {t} SET v = length({forge})"),
		a("UPDATE, returning", "PGL02", "UPDATE {t} SET v = 666 RETURNING {forge}"),
		a("DELETE", "PGL02", "DELETE FROM {t} WHERE {forge} <> ''"),
		a("INSERT", "PGL02", "INSERT INTO {t} (id, v) SELECT 4, length({forge})"),
		a("ON CONFLICT", "PGL02", "INSERT INTO {t} (id, v) VALUES (2, 1) ON CONFLICT (id) DO UPDATE SET v = 666 WHERE {forge} <> ''"),
		a("two writing CTEs", "PGL02", "WITH a AS (SELECT {forge} AS x), b AS (INSERT INTO {t} (id, v) SELECT 4, length(x) FROM a RETURNING 1) UPDATE {t} SET v = length({forge})"),
		a("COPY, which evaluates its WHERE for each row", "PGL02", "COPY {t} (id, v) FROM STDIN WHERE {forge} <> ''"),
	}
	restored := []attack{
		a("restored", "PGL02", "UPDATE {t} SET v = length({forge}) + length({clear})"),
		a("a writing CTE", "PGL02", "WITH w AS (UPDATE {t} SET v = 666 WHERE {forge} <> '' RETURNING 1) SELECT {clear} FROM w"),
	}
	statements := []attack{
		a("an expression", "PGL02", "UPDATE {t} SET v = length({forge}) WHERE id = 2"),
		a("a function in an expression", "PGL02", "UPDATE {t} SET v = length({m}.forges()) WHERE id = 2"),
		a("a nested statement", "PGL02", "UPDATE {t} SET v = {m}.nested() WHERE id = 1"),
		a("a nested statement in a query", "PGL02", "SELECT {m}.nested()"),
		a("a swallowed refusal", "ok", "SELECT {m}.swallows()", "SELECT {clear}"),
		a("a definer function", "PGL02", "SELECT {m}.definer()"),
		a("a trigger of another table", "PGL02", "DELETE FROM {m}.source"),
		a("a deferred trigger", "PGL02", "UPDATE {m}.source SET v = 5"),
		a("a deferred trigger, made immediate", "PGL02", "SET CONSTRAINTS ALL DEFERRED", "UPDATE {m}.source SET v = 5", "SET CONSTRAINTS ALL IMMEDIATE"),
		a("a view", "PGL02", "UPDATE {m}.v SET v = length({forge}) WHERE id = 2"),
		a("a view that forges", "PGL02", "UPDATE {m}.w SET v = 666 WHERE id = 2 AND f <> ''"),
		a("a rule", "PGL02", "INSERT INTO {m}.ruled VALUES (2)"),
		a("a rule beside a statement", "PGL02", "SELECT {forge}", "DELETE FROM {m}.ruled"),
		a("a savepoint", "PGL02", "SAVEPOINT a", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2", "RELEASE a"),
		a("two updates in one statement", "PGL02", "WITH a AS (UPDATE {t} SET v = 1 WHERE id = 1 RETURNING {forge} AS x), b AS (UPDATE {t} SET v = 666 WHERE id = 2 RETURNING 1) SELECT * FROM a, b"),
		a("a write, then a forged one", "PGL02", "WITH a AS (UPDATE {t} SET v = 1 WHERE id = 1 RETURNING {forge} AS x) UPDATE {t} SET v = length(x) FROM a WHERE {t}.id = 2"),
		a("a forged one, then a clean end", "PGL02", "WITH a AS (UPDATE {t} SET v = 666 WHERE id = 2 AND {forge} <> '' RETURNING id) SELECT {clear} FROM a"),
		a("delete and insert in one statement", "PGL02", "WITH a AS (DELETE FROM {t} WHERE id = 2 AND {forge} <> '' RETURNING id) INSERT INTO {t} (id, v) SELECT id + 100, 666 FROM a"),
		a("on conflict", "PGL02", "INSERT INTO {t} (id, v) VALUES (2, 666) ON CONFLICT (id) DO UPDATE SET v = length({forge})"),
		a("on conflict, with a huge token", "PGL02", "INSERT INTO {t} (id, v, fence_token) VALUES (2, 666, 9000000000000000000) ON CONFLICT (id) DO UPDATE SET fence_token = excluded.fence_token, v = length({huge})"),
		a("a cursor", "PGL02", "DECLARE c CURSOR FOR SELECT id FROM {t} WHERE id = 2 FOR UPDATE", "FETCH c", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE CURRENT OF c"),
		a("a cursor that outlives its commit", "PGL02", "DECLARE c CURSOR WITH HOLD FOR SELECT {m}.nested()"),
		a("a prepared statement", "PGL02", "PREPARE x_{n} AS UPDATE {t} SET v = length({forge}) WHERE id = 2", "EXECUTE x_{n}"),
		a("a block", "PGL02", "DO $d$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; END $d$"),
		a("a loop over a writing statement", "PGL02", "DO $d$ DECLARE r record; BEGIN FOR r IN UPDATE {t} SET v = length({forge}) WHERE id = 2 RETURNING id LOOP PERFORM {clear}; EXIT; END LOOP; END $d$"),
		a("another role", "PGL02", "SET LOCAL ROLE {role}", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("the session's replication role", "42501", "SET LOCAL session_replication_role = replica", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("no triggers", "42501", "ALTER TABLE {t} DISABLE TRIGGER ALL", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("decoys of the transition tables", "PGL02", "CREATE TEMP TABLE new_rows (id int, v int, fence_token bigint) ON COMMIT DROP", "CREATE TEMP TABLE old_rows (id int, v int, fence_token bigint) ON COMMIT DROP", "SET LOCAL search_path = pg_temp, pg_catalog", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("decoys of types", "PGL02", "CREATE DOMAIN pg_temp.text AS pg_catalog.int4", "CREATE DOMAIN pg_temp.int8 AS pg_catalog.text", "CREATE DOMAIN pg_temp.bigint AS pg_catalog.text", "SET LOCAL search_path = pg_temp, pg_catalog", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("an odd way to read literals", "PGL02", "SELECT set_config(name, 'off', true) FROM pg_settings WHERE name = 'standard_conforming_strings' AND current_setting('server_version_num')::int < 190000", "SET LOCAL backslash_quote = on", "SET LOCAL transform_null_equals = on", "SELECT {forge}", "UPDATE {t} SET v = 666 WHERE id = 2"),
		a("little memory", "PGL02", "SET LOCAL work_mem = '64kB'", "UPDATE {t} SET v = length({forge}) WHERE id IN (SELECT 2 FROM generate_series(1, 5000))"),
		a("parallel workers", "PGL02", "SET LOCAL parallel_setup_cost = 0", "SET LOCAL parallel_tuple_cost = 0", "SET LOCAL min_parallel_table_scan_size = 0", "INSERT INTO {t} (id, v) SELECT DISTINCT s.id + 1000, length({forge}) FROM {m}.source AS s"),
		a("a lock for the other's name", "PGL01 PGL03", "SELECT {forge}", "{bind}", "UPDATE {t} SET v = 666 WHERE id = 2").by("holder"),
		a("a bind in the statement", "PGL01 PGL03", "UPDATE {t} SET v = 666 WHERE id IN (1, 2) AND ({bind})::text IS DISTINCT FROM 'x'"),
		a("a token for one row", "PGL01 PGL02 ok", "UPDATE {t} SET v = length({one token}) WHERE id = 1 RETURNING {back}"),
		a("a token for one row, in a query", "PGL01 PGL02 ok", "WITH w AS (UPDATE {t} SET v = length({one token}) WHERE id = 1 RETURNING 1) SELECT {back} FROM w"),
		a("a token for a new row", "PGL01 PGL02 PGL03", "WITH w AS (INSERT INTO {t} (id, v) SELECT 2000, length({one token}) RETURNING 1) SELECT {back} FROM w"),
		a("a truncation", "PGL02", "SELECT {forge}", "TRUNCATE {t}"),
		a("a truncation of another with it", "PGL02", "SELECT {forge}", "TRUNCATE {m}.source, {t}"),
		a("a truncation with another token", "PGL01 PGL02 PGL03", "SELECT set_config('{token}', '9000000000000000000', true)", "TRUNCATE {t}"),
		a("a truncation without a token", "PGL01 PGL02 PGL03", "SELECT set_config('{token}', '', true)", "TRUNCATE {t}"),
		a("a deletion, a rollback and the rest", "PGL02", "SAVEPOINT a", "DELETE FROM {t} WHERE id = 1", "ROLLBACK TO a", "SELECT {forge}", "DELETE FROM {t} WHERE id = 2"),
		a("a grant that was bound before a commit in a procedure", "PGL02", "CALL {m}.across()").by("writer"),
		a("junk in the settings", "PGL02", "SELECT set_config('{grants}', 'junk', true)", "INSERT INTO {t} (id) VALUES (5)"),
		a("control: by a view and a block, with the grant", "ok", "UPDATE {m}.v SET v = 7 WHERE id = 1", "DO $d$ BEGIN UPDATE {t} SET v = 7 WHERE id = 1; END $d$").by("holder"),
		a("control: bound after a forgery", "ok", "SELECT {huge}", "{bind}", "UPDATE {t} SET v = 7 WHERE id = 1").by("holder"),
	}
	if version >= mergeSince {
		expressions = append(expressions, a("MERGE", "PGL02", "MERGE INTO {t} AS t USING (SELECT 2 AS id, {forge} AS x) AS s ON s.id = t.id WHEN MATCHED AND s.x <> '' THEN UPDATE SET v = 666 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (1, 1)"))
		statements = append(statements, a("merge of all kinds", "PGL02", "MERGE INTO {t} AS t USING (SELECT i AS id, {forge} AS x FROM generate_series(1, 5) AS i) AS s ON s.id = t.id WHEN MATCHED AND s.id = 2 THEN DELETE WHEN MATCHED AND x <> '' THEN UPDATE SET v = 666 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, length({clear}))"))
	}
	all := []scene{
		{name: "expressions of a statement", as: everyone, both: true, attacks: slices.Concat(expressions, restored)},
		{name: "expressions, permissive", on: "permissive", as: "holder|user's holder", both: true, attacks: expressions},
		{
			// A role that needs no grant could lock holders out by tokens that it makes up, or let
			// old ones in by lower ones.
			name: "tokens of a permissive table", on: "permissive|permissive, partitioned", as: "outsider|writer", both: true, attacks: []attack{
				a("raised", "PGL02", "UPDATE {t} SET v = length({forge})"),
				a("lowered", "PGL02", "UPDATE {t} SET v = length({forge 1})"),
				a("raised, cleared for each row", "ok", "UPDATE {t} SET v = length({forge}) + length({clear})"),
				a("raised, cleared in the end", "PGL02", "WITH w AS (UPDATE {t} SET v = length({forge}) RETURNING 1) SELECT {clear} FROM w"),
				a("lowered, cleared in the end", "PGL02", "WITH w AS (UPDATE {t} SET v = length({forge 1}) RETURNING 1) SELECT {clear} FROM w"),
				a("inserted", "PGL02", "INSERT INTO {t} (id, v) SELECT 4, length({forge})"),
				a("inserted, cleared for each row", "ok", "INSERT INTO {t} (id, v) SELECT 4, length({forge}) + length({clear})"),
				a("inserted, cleared in the end", "PGL02", "WITH w AS (INSERT INTO {t} (id, v) SELECT 4, length({forge}) RETURNING 1) SELECT {clear} FROM w"),
				a("swapped", "PGL02", "UPDATE {t} SET v = length(set_config('{token}', CASE id WHEN 1 THEN '{other token}' ELSE '{own token}' END, true)) WHERE id < 3"),
				a("zeroed", "PGL02", "UPDATE {t} SET v = length(set_config('{token}', '0', true))"),
				a("control: a write that leaves the tokens", "ok", "UPDATE {t} SET v = 5, fence_token = 9"),
			},
		},
		{
			name: "what runs beside a statement", attacks: statements, undo: []string{"DROP PROCEDURE {m}.across"}, prepare: []string{
				"CREATE FUNCTION {m}.forges() RETURNS text LANGUAGE sql AS $f$ SELECT {forge} $f$",
				"CREATE FUNCTION {m}.nested() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; RETURN 1; END $f$",
				"CREATE FUNCTION {m}.swallows() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; BEGIN UPDATE {t} SET v = 666 WHERE id = 2; EXCEPTION WHEN OTHERS THEN NULL; END; RETURN 1; END $f$",
				"CREATE FUNCTION {m}.definer() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; RETURN 1; END $f$",
				"CREATE TABLE {m}.source (id int, v int)", "INSERT INTO {m}.source VALUES (2, 666), (2, 1)",
				"CREATE FUNCTION {m}.on_source() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 666 WHERE id = 2; PERFORM {clear}; RETURN NULL; END $f$",
				"CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON {m}.source DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {m}.on_source()",
				"CREATE TRIGGER soon AFTER DELETE ON {m}.source FOR EACH ROW EXECUTE FUNCTION {m}.on_source()",
				"CREATE VIEW {m}.v AS SELECT id, v FROM {t}", "CREATE VIEW {m}.w AS SELECT id, v, {m}.forges() AS f FROM {t}",
				"CREATE TABLE {m}.ruled (id int)",
				"CREATE RULE r AS ON INSERT TO {m}.ruled DO INSTEAD UPDATE {t} SET v = length({m}.forges()) WHERE id = NEW.id",
				"CREATE RULE s AS ON DELETE TO {m}.ruled DO ALSO UPDATE {t} SET v = 666 WHERE id = 2",
				"CREATE PROCEDURE {m}.across() LANGUAGE plpgsql AS $f$ DECLARE g text; k text; BEGIN {perform bind of n2}; g := current_setting('{grants}'); k := current_setting('{token}'); " +
					"COMMIT; PERFORM set_config('{grants}', g, true), set_config('{token}', k, true); UPDATE {t} SET v = 666 WHERE id = 2; END $f$",
			},
		},
		{
			name: "cascades", admin: []string{
				"CREATE TABLE {m}.parent (id int PRIMARY KEY)", "CREATE TABLE {m}.nulled (id int PRIMARY KEY)", "CREATE TABLE {m}.defaulted (id int PRIMARY KEY)",
				"INSERT INTO {m}.parent VALUES (1), (5); INSERT INTO {m}.nulled VALUES (1); INSERT INTO {m}.defaulted VALUES (1)",
				"ALTER TABLE {t} ADD nulled int, ADD defaulted int, ADD CONSTRAINT defaults FOREIGN KEY (defaulted) REFERENCES {m}.defaulted ON DELETE SET DEFAULT ON UPDATE SET NULL, ADD CONSTRAINT cascades FOREIGN KEY (parent) REFERENCES {m}.parent ON DELETE CASCADE ON UPDATE CASCADE, " +
					"ADD CONSTRAINT nulls FOREIGN KEY (nulled) REFERENCES {m}.nulled ON DELETE SET NULL ON UPDATE SET DEFAULT",
			},
			again: "UPDATE {t} SET parent = 1, nulled = 1, defaulted = 1 WHERE id = 2", undo: []string{"ALTER TABLE {t} DROP CONSTRAINT cascades, DROP CONSTRAINT nulls, DROP CONSTRAINT defaults, DROP nulled, DROP defaulted"},
			attacks: []attack{
				a("CASCADE by DELETE", "PGL02", "DELETE FROM {m}.parent WHERE {forge} <> ''"),
				a("CASCADE by UPDATE", "PGL02", "UPDATE {m}.parent SET id = length({huge}) WHERE id = 1"),
				a("CASCADE by TRUNCATE", "PGL01 PGL02 PGL03", "TRUNCATE {m}.parent CASCADE"),
				a("control: CASCADE to its own row", "ok", "UPDATE {t} SET parent = 5 WHERE id = 1", "DELETE FROM {m}.parent WHERE id = 5").by("holder"),
				a("CASCADE beside a write", "PGL02", "WITH p AS (DELETE FROM {m}.parent RETURNING id) UPDATE {t} SET id = 6 FROM p WHERE {t}.id = 2 AND {forge} <> ''"),
				a("SET NULL by UPDATE", "PGL02", "UPDATE {m}.defaulted SET id = length({huge})"),
				a("SET DEFAULT by DELETE", "PGL02", "DELETE FROM {m}.defaulted WHERE {forge} <> ''"),
				a("SET NULL by DELETE", "PGL02", "DELETE FROM {m}.nulled WHERE {forge} <> ''"),
				a("SET DEFAULT by UPDATE", "PGL02", "UPDATE {m}.nulled SET id = length({huge})"),
			},
		},
		{
			name: "a policy that hides newer rows from TRUNCATE", admin: []string{"ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "CREATE POLICY p ON {t} USING (id = 1)"},
			undo: []string{"DROP POLICY p ON {t}"}, attacks: []attack{a("TRUNCATE", "42501 PGL02 PGL03", "TRUNCATE {t}")},
		},
	}
	for policy, using := range map[string]string{"that forges": "{m}.sees(id)", "for everything": "true", "that hides newer rows": "coalesce(fence_token, 0) <> 0 OR id < 3"} {
		all = append(all, scene{
			name: "a policy " + policy, noControl: policy == "that forges",
			prepare: []string{"CREATE FUNCTION {m}.sees(int) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RETURN {forge} <> ''; END $f$"},
			admin:   []string{"ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "CREATE POLICY p ON {t} USING (" + using + ") WITH CHECK (" + using + ")"},
			undo:    []string{"DROP POLICY p ON {t}", "DROP FUNCTION {m}.sees", "ALTER TABLE {t} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY"},
			attacks: []attack{
				a("an UPDATE", "PGL01 PGL02 PGL03", "UPDATE {t} SET v = 666 WHERE id = 2"),
				a("an UPDATE that forges", "PGL02", "UPDATE {t} SET v = length({forge}) WHERE id = 2"),
				a("a DELETE with a policy", "PGL01 PGL02 PGL03", "DELETE FROM {t} WHERE id = 2"),
				a("an INSERT of a token", "PGL02", "INSERT INTO {t} (id, v, fence_token) VALUES (2, 666, 9000000000000000000) ON CONFLICT (id) DO UPDATE SET v = length({huge})"),
				a("a TRUNCATE with a policy", "PGL02", "SELECT {forge}", "TRUNCATE {t}"),
			},
		})
	}
	partitions := scene{name: "the table, a partition, or a partition in between", on: "named, partitioned", as: everyone, both: true}
	for _, target := range []string{"{t}", "{mid}", "{leaf}"} {
		partitions.attacks = append(partitions.attacks,
			a("an INSERT into "+target, "PGL02", "INSERT INTO "+target+" (id, v) SELECT 4, length({forge})"),
			a("an UPDATE of "+target, "PGL02", "UPDATE "+target+" SET v = length({forge}) WHERE id = 2"),
			a("ON CONFLICT in "+target, "PGL02", "INSERT INTO "+target+" (id, v) VALUES (2, 5) ON CONFLICT (id) DO UPDATE SET v = length({forge})"),
			a("a DELETE of "+target, "PGL02", "DELETE FROM "+target+" WHERE id = 2 AND {forge} <> ''"),
			a("another lock's row of "+target, "PGL03", "UPDATE "+target+" SET v = 5 WHERE id = 2").by("holder"),
			a("a row of "+target+" moves to another lock", "PGL03", "UPDATE "+target+" SET id = 4 WHERE id = 1").by("holder"),
			a("control: its own row of "+target, "ok", "UPDATE "+target+" SET v = 7 WHERE id = 1", "DELETE FROM "+target+" WHERE id = 1", "INSERT INTO "+target+" (id, v) VALUES (1, 0)").by("holder"))
	}
	all = append(all, partitions)
	// A generated column is computed after its row was stamped, and before the next one is.
	for what, body := range map[string]string{
		"forges": "PERFORM {forge};", "forges a token for others": "PERFORM {huge};", "clears": "PERFORM {clear};", "writes": "IF v = 666 THEN PERFORM {m}.writes(); END IF;",
	} {
		all = append(all, scene{
			name: "a generated column that " + what,
			prepare: []string{
				"CREATE FUNCTION {m}.writes() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN PERFORM {forge}; UPDATE {t} SET v = 665 WHERE id = 2; END $f$",
				"CREATE FUNCTION {m}.of(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN IF v = 7 THEN RETURN 7; END IF; " + body + " RETURN 1; END $f$",
			},
			admin: []string{"SET session_replication_role = replica; DELETE FROM {t}; RESET session_replication_role", "ALTER TABLE {t} ADD computed int GENERATED ALWAYS AS ({m}.of(v)) STORED"},
			undo:  []string{"ALTER TABLE {t} DROP computed", "DROP FUNCTION {m}.of, {m}.writes"},
			attacks: []attack{
				a("an UPDATE beside a generated column", "PGL02", "UPDATE {t} SET v = 666 WHERE id = 2"),
				a("of several rows", "PGL02", "UPDATE {t} SET v = 666"),
				a("with its own row", "PGL02", "UPDATE {t} SET v = 666 WHERE id IN (1, 2)"),
				a("an INSERT beside a generated column", "PGL02", "INSERT INTO {t} (id, v) VALUES (2, 666) ON CONFLICT (id) DO UPDATE SET v = 666"),
			},
		})
	}
	forged := scene{name: "settings of others' grants", as: "outsider|holder"}
	for grant, id := range map[string]string{"current": "5", "old": "5", "released": "6", "expired": "7", "never": "8", "made up": "2"} {
		forged.attacks = append(forged.attacks,
			a("a row of the grant "+grant, "PGL02", "SELECT {forge "+grant+"}", "INSERT INTO {t} (id, v) VALUES ("+id+", 5) ON CONFLICT (id) DO UPDATE SET v = 5"),
			a("TRUNCATE as the grant "+grant, "PGL02", "SELECT {forge "+grant+"}", "TRUNCATE {t}"))
	}
	return append(all, forged,
		scene{
			// The fence's functions run with the rights of the locks' owner, and must call no code
			// of a table's owner.
			name: "triggers that a table's owner makes of the fence's functions", on: "any lock", as: "owner",
			admin: []string{"GRANT EXECUTE ON FUNCTION {h}.bind(text, bigint) TO {owner}"}, undo: []string{"REVOKE EXECUTE ON FUNCTION {h}.bind(text, bigint) FROM {owner}"},
			owned: []string{
				"CREATE TABLE {m}.ran (who text)", "CREATE TYPE {m}.en AS ENUM ('a')",
				"CREATE FUNCTION {m}.evil() RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {m}.ran VALUES (current_user); RETURN 0; END $f$",
				"CREATE FUNCTION {m}.to_json({m}.en) RETURNS json LANGUAGE plpgsql AS $f$ BEGIN PERFORM {m}.evil(); RETURN '1'; END $f$",
				"CREATE CAST ({m}.en AS json) WITH FUNCTION {m}.to_json({m}.en)",
			},
			attacks: []attack{
				a("a function in the place of the token", "42703", "CREATE TABLE {m}.z (id int, e {m}.en)",
					"CREATE TRIGGER a AFTER INSERT ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('to_jsonb', 'strict', '')", "INSERT INTO {m}.z VALUES (1, 'a')"),
				a("a function in the lock's name", "42703", "CREATE TABLE {m}.z (id int, e {m}.en, fence_token bigint)",
					"CREATE TRIGGER a AFTER INSERT ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', 'n{to_jsonb}', 'kept', '', 'n', 'to_jsonb')",
					"{bind}", "INSERT INTO {m}.z VALUES (1, 'a')"),
				a("a function in the name of a moved row's lock", "42703", "CREATE TABLE {m}.z (id int, e {m}.en, fence_token bigint)", "INSERT INTO {m}.z VALUES (1, 'a')",
					"CREATE TRIGGER a BEFORE UPDATE ON {m}.z FOR EACH ROW EXECUTE FUNCTION {h}.fence_moved('fence_token', 'permissive', 'n{to_jsonb}', 'kept', '', 'n', 'to_jsonb')", "{bind}", "UPDATE {m}.z SET id = 2"),
				a("views in the place of rows", "42804", "CREATE TABLE {m}.z (id int, fence_token bigint)", "CREATE TEMP VIEW new_rows AS SELECT {m}.evil() AS fence_token",
					"CREATE TRIGGER a AFTER INSERT ON {m}.z FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', '')", "INSERT INTO {m}.z VALUES (1, 1)"),
				a("a view in the place of old rows", "42804", "CREATE TABLE {m}.z (id int, fence_token bigint)", "INSERT INTO {m}.z VALUES (1, 1)", "CREATE TEMP VIEW old_rows AS SELECT {m}.evil() AS fence_token",
					"CREATE TRIGGER a AFTER UPDATE ON {m}.z REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'permissive', '')", "UPDATE {m}.z SET id = 2"),
				a("control: the cast runs for its owner", "ok", "SELECT to_jsonb(z) FROM (SELECT 'a'::{m}.en AS e) AS z", "SELECT 1 / count(*) FROM {m}.ran"),
			},
		},
		scene{
			// The triggers use none of these. The last attack meets the plans that a trigger has
			// cached in the session.
			name: "operators, functions and tables of the writer's own", prepare: []string{
				shadows, "CREATE TABLE {m}.distributed_locks (name pg_catalog.text, token pg_catalog.int8, expires_at timestamptz)", "INSERT INTO {m}.distributed_locks VALUES ('n1', 999999, 'infinity')",
			},
			attacks: []attack{
				a("control: an operator is a shadow", "P0001", ownPath, "SELECT 5::pg_catalog.int8 <= 4::pg_catalog.int8"),
				a("control: a function is a shadow", "P0001", ownPath, "SELECT clock_timestamp()"),
				a("control: a type is a shadow", "23514", ownPath, "SELECT 1::int8"),
				a("an UPDATE", "PGL01 PGL02 PGL03", ownPath, "UPDATE {t} SET v = 666"),
				a("a DELETE", "PGL01 PGL02 PGL03", ownPath, "DELETE FROM {t}"),
				a("temporary tables", "PGL01 PGL02 PGL03", "CREATE TEMP TABLE distributed_locks ON COMMIT DROP AS SELECT * FROM {m}.distributed_locks", "CREATE TEMP TABLE fencing_high_water (resource pg_catalog.text, token pg_catalog.int8) ON COMMIT DROP",
					"SET LOCAL search_path TO pg_temp, {m}, pg_catalog", "UPDATE {t} SET v = 666"),
				a("a grant of its own tables", "PGL01", ownPath, "SELECT {h}.bind('n1', 999999)"),
				a("control: grants of the locks' tables", "ok", "SET LOCAL idle_in_transaction_session_timeout = '5s'", ownPath, "{bind}", "DO $d$ BEGIN {perform bind of n2}; END $d$"),
				a("control: its own row, then another on the usual path", "PGL01 PGL03", ownPath, ownWrite, "SET LOCAL search_path TO DEFAULT", "UPDATE {t} SET v = 666 WHERE id = 2").by("holder"),
				a("control: its own row", "ok", ownPath, ownWrite).by("holder"),
			},
		},
		scene{name: "functions and tables of the locks", on: "any lock", as: "looker|owner", attacks: []attack{
			a("a seal", "42501", "SELECT {h}.fencing_seal('', '{}')").by("looker|owner|writer|user"), a("what is bound", "42501", "SELECT {h}.bound_grants()"), a("what a setting holds", "42501", "SELECT {h}.unsealed('x')"),
			a("judging", "42501", "SELECT {h}.judge_rows('{}', 'n', 1, 1, 1, '', '', '')"), a("bind without the right", "42501", "SELECT {h}.bind('n1', 1)"),
			a("guard", "42501", "SELECT {h}.guard('n1', 1)"), a("check", "42501", "SELECT {h}.check_fence('n1', 1)"), a("advance", "42501", "SELECT {h}.advance('r', 1)"),
			a("the key", "42501", "SELECT * FROM {h}.fencing_secret").by("looker|owner|writer|user"), a("marks", "42501", "SELECT * FROM {h}.fencing_high_water").by("looker"),
			a("locks", "42501", "SELECT * FROM {h}.distributed_locks").by("looker"),
		}},
		scene{
			// No grant has such a token, which a role that may write lock rows can store.
			name: "tokens below one", on: "any lock", as: "writer",
			admin: []string{"INSERT INTO {h}.distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('zero', 0, 1, now(), now() + interval '1 hour'), ('below', -5, 1, now(), now() + interval '1 hour')"},
			attacks: []attack{
				a("bind of zero", "PGL08", "SELECT {h}.bind('zero', 0)"), a("guard of zero", "PGL08", "SELECT {h}.guard('zero', 0)"),
				a("bind below zero", "PGL08", "SELECT {h}.bind('below', -5)"), a("guard below zero", "PGL08", "SELECT {h}.guard('below', -5)"),
			},
		}, damage())
}

// damage are rows that no release and no acquire could get over. The control writes the highest and
// lowest values that pass.
func damage() scene {
	const (
		lock    = "INSERT INTO {h}.distributed_locks (name, token, version, acquired_at, expires_at) VALUES "
		update  = "UPDATE {h}.distributed_locks SET %s WHERE name = 'n'"
		waiting = "INSERT INTO {h}.lock_waiters (name, client, expires_at) VALUES ('n', %s, now() + interval '1 hour')"
		waiter  = "UPDATE {h}.lock_waiters SET %s"
		permit  = "INSERT INTO {h}.lock_permits (name, token, weight, version, acquired_at, expires_at, request) VALUES ('n', 1, %s, 1, now(), now(), gen_random_uuid())"
		next    = "token = greatest(1, token + 1), version = version + 1"
	)
	s := scene{name: "damage to the locks", on: "any lock", as: "user", admin: []string{lock + "('n', 1, 1, now(), now() + interval '1 hour')", sprintf(waiting, "'waiter'")}}
	for statement, values := range map[string][]string{
		lock + "('m', %s, 1, now(), now())": {"9223372036854775807"},
		waiting:                             {"''", "repeat('c', 59)", "'/5'"},
		update: {
			"token = 9223372036854775807", "token = (1::bigint << 62) + 1", "expires_at = 'infinity'", "acquired_at = 'infinity'", "acquired_at = '-infinity'", "ended_at = 'infinity'", "acquired_at = '0044-03-15 BC'",
			"expires_at = '9998-01-01'", "expires_at = '0044-03-15 BC'", "capacity = 0", "capacity = 2, in_use = -2147483648", "in_use = 1073741825",
		},
		waiter: {"since = 'infinity'", "keep_until = 'infinity'", "expires_at = 'infinity'", "since = '0044-03-15 BC'", "weight = -2147483648"},
		permit: {"0", "1073741825"},
	} {
		for _, v := range values {
			s.attacks = append(s.attacks, a(sprintf(statement, v), "23514", sprintf(statement, v)))
		}
	}
	s.attacks = append(s.attacks, a("control: what passes", "ok", sprintf(waiting, "repeat('c', 58)"), sprintf(update, "token = 1::bigint << 62"), sprintf(update, next), sprintf(update, next),
		sprintf(update, "expires_at = '-infinity'"), sprintf(update, "expires_at = '2261-12-31', acquired_at = '1970-01-02'"), sprintf(waiter, "since = '1970-01-02', keep_until = '2261-12-31', weight = 1073741824"),
		sprintf(permit, "1073741824"), "SELECT {h}.wake_next('n', 0, NULL)", "SELECT 1 / count(*) FROM {h}.distributed_locks WHERE name = 'n' AND token = (1::bigint << 62) + 2"))
	return s
}

// TestP51_AttacksFromOtherSessions: dblink and postgres_fdw write in sessions of their own, which
// have bound nothing, also if they are told what the first one has bound.
func TestP51_AttacksFromOtherSessions(t *testing.T) {
	t.Parallel()
	b := newBattlefield(t, pgtest.PoolOn(t, pgtest.Database(t)), "any lock")
	t.Cleanup(func() { _, _ = b.pool.Exec(context.Background(), "DROP EXTENSION postgres_fdw CASCADE") }) // its user mapping, before the role
	config := b.writer.Config().ConnConfig
	port, database := value[int](b.fixture, "SELECT inet_server_port()"), value[string](b.fixture, "SELECT current_database()")
	keyword := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" }
	here := sprintf("host=127.0.0.1 port=%d dbname=%s user=%s password=%s options='-c lock_timeout=3s -c idle_in_transaction_session_timeout=3s'", port, keyword(database), keyword(config.User), keyword(config.Password))
	b.sql("CREATE EXTENSION dblink; CREATE EXTENSION postgres_fdw; GRANT EXECUTE ON FUNCTION dblink_connect_u(text, text) TO PUBLIC")
	far := func(s string) string { return "SELECT public.dblink_exec('far', " + literal(b.named.Replace(s)) + ")" }
	block := func(s string) string {
		return far("DO $d$ BEGIN " + strings.Replace(s, "SELECT", "PERFORM", 1) + "; END $d$")
	}
	open := "SELECT CASE WHEN 'far' = ANY (public.dblink_get_connections()) THEN public.dblink_disconnect('far') END, public.dblink_connect_u('far', " + literal(here) + ")"
	bind := block(b.bindSQL(b.own))
	const write = "UPDATE {t} SET v = 666 WHERE id = 2"
	told := strings.ReplaceAll(b.named.Replace("DO $d$ BEGIN PERFORM set_config('{grants}', <bound>, true), set_config('{token}', <bound>, true); END $d$; "+write), "%", "%%")
	told = "SELECT public.dblink_exec('far', format($c$" + strings.ReplaceAll(told, "<bound>", "%L") + "$c$, current_setting('{grants}', true), current_setting('{token}', true)))"
	b.play(scene{name: "dblink", attacks: []attack{
		a("a write", "PGL02", open, far(write)),
		a("forged", "PGL02", open, far("BEGIN"), block("SELECT {forge}"), far(write)),
		a("with what was bound", "PGL02", open, far("BEGIN"), told),
		a("in an expression", "PGL02", open, "UPDATE {t} SET v = length(public.dblink_exec('far', "+literal(b.named.Replace(write))+")) WHERE id = 1"),
		a("that ends triggers", "42501", open, far("SET session_replication_role = replica"), far(write)),
		a("with another grant", "PGL01", open, far("BEGIN"), bind, far(write)),
		a("control: with a grant of its own", "ok", open, far("BEGIN"), bind, far("UPDATE {t} SET v = 7 WHERE id = 1"), far("COMMIT"), "SELECT public.dblink_disconnect('far')",
			"SELECT 1 / count(*) FROM {t} WHERE v = 7").by("writer"),
	}})
	forged := sprintf(`-c {grants}=%s{"lock":"n2","grants":{"n2":%d}} -c {token}=%[2]d`, strings.Repeat("0", 64), b.other.Token)
	for name, options := range map[string]string{"loop": "-c lock_timeout=3s", "forging": "-c lock_timeout=3s " + forged} {
		want(t, "a server", b.run(b.pool, sprintf("CREATE SERVER %s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '%d', dbname %s, options %s)", name, port, literal(database), literal(b.named.Replace(options))),
			sprintf("CREATE USER MAPPING FOR PUBLIC SERVER %s OPTIONS (user %s, password %s, password_required 'false')", name, literal(config.User), literal(config.Password)),
			b.named.Replace("IMPORT FOREIGN SCHEMA "+strings.TrimSuffix(b.table, `."t"`)+" FROM SERVER "+name+" INTO {m}; ALTER FOREIGN TABLE {m}.t RENAME TO "+name)), nil)
		b.play(scene{name: "postgres_fdw, " + name, attacks: []attack{
			a("an UPDATE", "PGL02", "UPDATE {m}."+name+" SET v = 666 WHERE id = 2"),
			a("forged", "PGL02", "SELECT {forge}", "UPDATE {m}."+name+" SET v = 666 WHERE id = 2"),
			a("a deletion", "PGL02", "DELETE FROM {m}."+name),
			a("an insertion", "PGL02", "INSERT INTO {m}."+name+" (id, v, fence_token) VALUES (4, 666, 9000000000000000000)"),
			a("in a write", "PGL02", "WITH w AS (UPDATE {m}."+name+" SET v = 666 WHERE id = 2 RETURNING 1) UPDATE {t} SET v = 1 FROM w WHERE id = 1"),
			a("row by row", "PGL02", "UPDATE {m}."+name+" SET v = length({forge}) WHERE id = 2 AND random() >= 0"),
			a("another token", "PGL02", "UPDATE {m}."+name+" SET fence_token = fence_token + 1 WHERE id = 2"),
			a("control: it reads", "ok", "SELECT 1 / count(*) FROM {m}."+name),
		}})
	}
}

// sealed reads what a transaction has bound, as statements that set it again.
func (g fixture) sealed(tx pgx.Tx) (all []string) {
	g.t.Helper()
	for _, key := range []string{"grants", "token"} {
		var value string
		name := settings(g)[key]
		ok(g.t, tx.QueryRow(g.t.Context(), "SELECT current_setting($1, true)", name).Scan(&value))
		all = append(all, sprintf("SELECT set_config('%s', %s, true)", name, literal(value)))
	}
	return all
}

// TestAttackByReplay copies the settings of a transaction that has bound a grant into others, and
// into the same one after a rollback to a savepoint, which has taken the lock of the grant's row
// along.
func TestAttackByReplay(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	write := "INSERT INTO " + table + " VALUES (1, 5)"
	tx := g.bound(f)
	copied := g.sealed(tx)
	wantCode(t, "in another session", g.run(g.writer, append(copied, write)...), "PGL02")
	want(t, "control: in the transaction itself", g.send(tx, append(copied, write)...), nil)
	g.holds(table, "(1,5,%d)", f.Token)

	conn := g.conn()
	tx, err := conn.Begin(t.Context())
	ok(t, err)
	ok(t, fencing.Bind(t.Context(), tx, f))
	copied = g.sealed(tx)
	ok(t, tx.Commit(t.Context()))
	tx, err = conn.Begin(t.Context())
	ok(t, err)
	wantCode(t, "in the next transaction of the session", g.send(tx, append(copied, "UPDATE "+table+" SET v = 6")...), "PGL02")
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		for what, meanwhile := range map[string]func(){
			"nobody":     func() {},
			"a takeover": func() { g.grant("n", time.Hour) },
			"a takeover, whose token is in the setting beside the seal": func() {
				copied = append(copied, sprintf("SELECT set_config('%s', '%d', true)", settings(g)["token"], g.grant("n", time.Hour).Token))
			},
			"a late write": func() { want(t, "late", g.as(g.grant("n", time.Hour), "UPDATE "+table+" SET v = 7"), nil) },
		} {
			f := g.grant("n", time.Hour)
			tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
			g.savepoint(tx, func(inner pgx.Tx) {
				ok(t, fencing.Bind(t.Context(), inner, f))
				copied = g.sealed(inner)
			})
			meanwhile()
			before := g.dump(table)
			err = g.send(tx, append(copied, "UPDATE "+table+" SET v = 8")...)
			if what == "nobody" { // the grant is still the current one
				want(t, "after a savepoint, "+what, err, nil)
				continue
			}
			refused(t, string(level)+": after a savepoint, "+what, err)
			g.holds(table, "%s", before)
		}
	}
}

// TestAWriteLocksItsGrantAgain: a write whose bind was undone with a savepoint keeps a takeover off
// until it is committed. The control is the same transaction without the write.
func TestAWriteLocksItsGrantAgain(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	tx := g.begin()
	var copied []string
	g.savepoint(tx, func(inner pgx.Tx) {
		ok(t, fencing.Bind(t.Context(), inner, f))
		copied = g.sealed(inner)
	})
	if !g.free("n") {
		t.Error("control: the grant is still held after the savepoint")
	}
	for _, s := range append(copied, "INSERT INTO "+table+" VALUES (1, 5)") {
		_, err := tx.Exec(t.Context(), s)
		ok(t, err)
	}
	if g.free("n") {
		t.Error("a takeover could come between the write and its commit")
	}
}

// TestAWriteThatHasWaitedIsJudgedByTheNewRow, not by the one that its statement saw.
func TestAWriteThatHasWaitedIsJudgedByTheNewRow(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	early, late := g.grant("early", time.Hour), g.grant("late", time.Hour)
	for _, write := range []string{"UPDATE %s SET v = v + 10 WHERE id = 1", "DELETE FROM %s WHERE id = 1", "INSERT INTO %s VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = 10"} {
		g.reset(table, early.Token)
		first := g.bound(late)
		g.exec(first, "UPDATE "+table+" SET v = 5 WHERE id = 1")
		done := make(chan error, 1)
		go func() { done <- g.run(g.writer, g.bindSQL(early), sprintf(write, table)) }()
		locktest.WaitingAs(t, g.pool, g.writer, 1)
		ok(t, first.Commit(t.Context()))
		want(t, write, <-done, fencing.ErrStale)
		g.holds(table, "(1,5,%d)", late.Token)
	}
}

// TestTruncateSeesWhatTheSnapshotDoesNot: TRUNCATE removes all rows, also those that the
// transaction's snapshot has missed.
func TestTruncateSeesWhatTheSnapshotDoesNot(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	early := g.grant("early", time.Hour)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		ok(t, fencing.Bind(t.Context(), tx, early))
		late := g.grant("late", time.Hour)
		want(t, "late", g.as(late, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
		wantCode(t, string(level), g.send(tx, "TRUNCATE "+table), "0A000")
		g.holds(table, "(1,0,%d)", late.Token)
		want(t, "READ COMMITTED sees it", g.as(early, "TRUNCATE "+table), fencing.ErrStale)
		want(t, "control: the later holder", g.as(late, "TRUNCATE "+table), nil)
		g.holds(table, "")
	}
}

// TestTheKeyOfTheSealsStaysSecret: no setting that a role may choose makes the server tell it, nor
// any text that a writer gets to see.
func TestTheKeyOfTheSealsStaysSecret(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	key := value[[]byte](g, "SELECT secret FROM pglock.fencing_secret")
	if len(key) != 32 {
		t.Fatalf("the key has %d bytes", len(key))
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
	ok(t, err)
	defer conn.Close(context.Background())
	for _, s := range []string{
		"SET client_min_messages = debug5", "SET debug_print_parse = on", "SET debug_print_rewritten = on", "SET debug_print_plan = on", "SET debug_pretty_print = off",
		"SET plan_cache_mode = force_custom_plan", "SET log_error_verbosity = default",
		"BEGIN", g.bindSQL(f), g.bindSQL(f), "INSERT INTO " + table + " VALUES (1, 0)", "UPDATE " + table + " SET v = 1", "COMMIT",
		"BEGIN", "SELECT " + g.forge("n", f.Token), "INSERT INTO " + table + " VALUES (2, 0)", "ROLLBACK",
	} {
		_, _ = conn.Exec(t.Context(), s) // some fail: what they say counts
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

// TestP51_OperatorsInTheLockSchemaHaveNoPart: no role needs CREATE there. A role that has it all
// the same finds no function that runs with its owner's rights and uses an operator, cast or
// function of that schema. The control shows that the operator is the better match where nothing is
// pinned.
func TestP51_OperatorsInTheLockSchemaHaveNoPart(t *testing.T) {
	t.Parallel()
	g := newFixtureOn(t, pgtest.PoolOn(t, pgtest.Database(t)))
	attacker := g.role()
	role, here := schema.Quote(pgtest.RoleOf(attacker)), schema.Quote(g.schema)
	stale := g.grant("n1", time.Hour)
	table, named := g.elsewhere("t"), g.elsewhereUnprotected("named")
	g.protect(named, fencing.NamedBy("n{id}"))
	g.sql("GRANT USAGE, CREATE ON SCHEMA " + here + " TO " + role + "; GRANT USAGE ON DOMAIN pglock.lock_name, pglock.lease_end, pglock.token_value TO " + role)
	deceive := func(args, returns string) string {
		return "(" + args + ") RETURNS " + returns + " LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE " + strings.ReplaceAll(role, "'", "''") + " SUPERUSER'; RETURN NULL; END $$"
	}
	ours := strings.NewReplacer("lock_name", here+".lock_name", "lease_end", here+".lease_end", "token_value", here+".token_value")
	var attack []string
	for i, types := range [][2]string{{"lock_name", "text"}, {"text", "lock_name"}, {"lock_name", "lock_name"}, {"bigint", "bigint"}, {"text", "text"}, {"lease_end", "timestamptz"}, {"token_value", "bigint"}, {"token_value", "integer"}, {"jsonb", "text"}} {
		for j, op := range []string{"=", "<>", ">", "<", "<=", ">=", "+", "-", "||", "->>", "*"} {
			l, r := ours.Replace(types[0]), ours.Replace(types[1])
			name := sprintf("%s.deceive_%d_%d", here, i, j)
			attack = append(attack, "CREATE FUNCTION "+name+deceive(l+", "+r, "boolean"), sprintf("CREATE OPERATOR %s.%s (FUNCTION = %s, LEFTARG = %s, RIGHTARG = %s)", here, op, name, l, r))
		}
	}
	for _, function := range []string{"clock_timestamp()", "current_setting(text)", "current_setting(text, boolean)", "format(text, text)", "octet_length(text)"} {
		name, args, _ := strings.Cut(strings.TrimSuffix(function, ")"), "(")
		attack = append(attack, "CREATE FUNCTION "+here+"."+name+deceive(args, "text"))
	}
	ok(t, g.run(attacker, attack...))
	wantCode(t, "control: the operator is found where nothing is pinned", g.run(g.pool, "SET LOCAL ROLE "+role, "SET LOCAL search_path TO "+here, sprintf("SELECT 'n'::%s.lock_name = 'n'::text", here)), "42501")
	f := g.grant("n1", time.Hour)
	next, token := sprintf("%d", f.Token), sprintf("%d", stale.Token)
	for _, statement := range []string{"SELECT {h}.guard('n1', {next})", "SELECT {h}.check_fence('n1', {next})", "SELECT {h}.advance('r', 5), {h}.advance('r', 6)", "SELECT * FROM {h}.protected_tables", "SELECT {h}.bind('n1', {next})"} {
		want(t, statement, g.run(g.pool, strings.NewReplacer("{h}", here, "{next}", next).Replace(statement)), nil)
	}
	want(t, "writes", g.as(f, "INSERT INTO "+table+" VALUES (1)", "UPDATE "+table+" SET v = 1", "INSERT INTO "+named+" VALUES (1)", "DELETE FROM "+named, "TRUNCATE "+table), nil)
	want(t, "Protect", fencing.Protect(t.Context(), g.pool, table, fencing.WithSchema(g.schema)), nil)
	want(t, "a stale one", g.run(g.pool, "SELECT "+here+".guard('n1', "+token+")"), fencing.ErrStale)
	want(t, "no fence", g.run(g.pool, "SELECT "+here+".guard('n1', 0)"), fencing.ErrInvalidFence)
	if value[bool](g, "SELECT rolsuper FROM pg_roles WHERE rolname = $1", pgtest.RoleOf(attacker)) {
		t.Error("the attacker has become a superuser")
	}
}

// TestAnOwnersTableRunsNothingAsTheLocksOwner: casts, functions in indexes and constraints, and
// types of a table's owner run with the rights of the role that writes. The table's owner can't
// reach those of the locks' owner.
func TestAnOwnersTableRunsNothingAsTheLocksOwner(t *testing.T) {
	t.Parallel()
	b := newBattlefield(t, pgtest.PoolOn(t, pgtest.Database(t)), "any lock")
	g, owner, in := b.fixture, b.roles["owner"], fencing.WithSchema(b.schema)
	role := literal(pgtest.RoleOf(owner))
	g.sql("SELECT pglock.grant_writer(" + role + ")")
	f, own, table := g.grant("n", time.Hour), g.grant("2", time.Hour), b.mine+".t"
	want(t, "objects", b.do("owner", "CREATE TABLE {m}.ran (as_role text)", "CREATE TYPE {m}.e AS ENUM ('1', '2')", "CREATE TYPE {m}.c AS (a int)",
		"CREATE FUNCTION {m}.note() RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN INSERT INTO {m}.ran VALUES (current_user); RETURN 1; END $f$",
		"CREATE FUNCTION {m}.cast({m}.e) RETURNS bigint LANGUAGE sql AS $f$SELECT {m}.note()$f$",
		"CREATE CAST ({m}.e AS bigint) WITH FUNCTION {m}.cast({m}.e) AS IMPLICIT",
		"CREATE FUNCTION {m}.say({m}.e) RETURNS text LANGUAGE sql AS $f$SELECT {m}.note()::text$f$",
		"CREATE CAST ({m}.e AS text) WITH FUNCTION {m}.say({m}.e) AS IMPLICIT",
		"CREATE FUNCTION {m}.of_c({m}.c) RETURNS bigint LANGUAGE sql AS $f$SELECT {m}.note()$f$",
		"CREATE CAST ({m}.c AS bigint) WITH FUNCTION {m}.of_c({m}.c) AS IMPLICIT",
		"CREATE FUNCTION {m}.fail() RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION 'ran as %', current_user; END $f$",
		"CREATE FUNCTION {m}.const() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN RETURN current_user = "+role+" OR pg_catalog.pg_has_role(current_user, "+role+", 'MEMBER') AND {m}.fail(); END $f$",
		"CREATE TABLE {m}.t (id text, v int)", "CREATE INDEX ON {m}.t (v) WHERE {m}.const()", "ALTER TABLE {m}.t ADD CHECK ({m}.const() OR id IS NULL)"), nil)
	ok(t, fencing.Protect(t.Context(), owner, table, fencing.NamedBy("{id}"), in))
	want(t, "control: its own write", b.do("owner", g.bindSQL(own), "INSERT INTO {m}.t VALUES ('2', 1)", "UPDATE {m}.t SET v = 2"), nil)
	ok(t, fencing.Unprotect(t.Context(), owner, table, in))
	ok(t, fencing.Protect(t.Context(), owner, table, in))
	for i, kind := range []string{"e", "c"} { // the token column becomes something else behind the triggers' back
		want(t, kind, b.do("owner", sprintf("ALTER TABLE {m}.t RENAME fence_token TO was%d", i), "ALTER TABLE {m}.t ADD fence_token {m}."+kind,
			"ALTER TABLE {m}.t DISABLE TRIGGER USER", "INSERT INTO {m}.t (v) VALUES (9)", "ALTER TABLE {m}.t ENABLE TRIGGER USER"), nil)
		for _, write := range []string{"INSERT INTO {m}.t (v) VALUES (1)", "UPDATE {m}.t SET v = 3", "DELETE FROM {m}.t", "TRUNCATE {m}.t"} {
			for _, begin := range []string{g.bindSQL(f), "SELECT 1"} {
				if err := b.do("owner", begin, write); err == nil && !strings.HasPrefix(write, "TRUNCATE") {
					t.Errorf("%s: %s: passed", kind, write)
				}
			}
		}
	}
	if n := value[int](g, "SELECT count(*) FROM "+b.mine+".ran WHERE as_role <> $1", pgtest.RoleOf(owner)); n != 0 {
		t.Errorf("code of the table's owner ran %d times with another role's rights", n)
	}
}

// TestAttacksByRowsThatMove: servers up to 18 give rows that MERGE moves to another partition to no
// trigger after the statement.
func TestAttacksByRowsThatMove(t *testing.T) {
	t.Parallel()
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}, "permissive": {fencing.Permissive()}} {
		for by, key := range map[string]string{"(id)": ", PRIMARY KEY (id)", "((id / 10))": ""} {
			t.Run(kind+", by "+by, func(t *testing.T) {
				t.Parallel()
				g := newFixture(t)
				outsider := g.role()
				table := g.table("root", "(id int, v int"+key+") PARTITION BY RANGE "+by)
				g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES FROM (0) TO (1); CREATE TABLE pglock.p2 PARTITION OF " + table + " DEFAULT")
				g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO PUBLIC; GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO PUBLIC")
				g.protect(table, opts...)
				older, zero, eleven := g.grant("old", time.Hour), g.grant("n0", time.Hour), g.grant("n11", time.Hour)
				moves := []string{"UPDATE " + table + " SET id = 11, v = 666 WHERE id = 0"}
				if g.serverVersion() >= mergeSince {
					moves = append(moves, "MERGE INTO "+table+" AS t USING (VALUES (0)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 11, v = 666")
				}
				for _, move := range moves {
					g.reset(table, zero.Token)
					g.replica("UPDATE " + table + " SET id = 0, v = 0")
					refused(t, "forged: "+move, g.run(outsider, "SELECT "+g.forge("n11", huge), move))
					refused(t, "an older grant: "+move, g.run(g.writer, g.bindSQL(older), move))
					none := []string{move}
					if kind == "permissive" { // then only another token is refused
						none = []string{strings.Replace(move, "v = 666", "fence_token = 7", 1), "SELECT " + g.forge("n11", 7), move}
					}
					refused(t, "no grant: "+move, g.run(outsider, none...))
					g.holds(table, "(0,0,%d)", zero.Token)
					if kind == "permissive" {
						want(t, "no grant, the token moves along: "+move, g.run(outsider, move), nil)
						g.holds(table, "(11,666,%d)", zero.Token)
						g.replica("UPDATE " + table + " SET id = 0, v = 0")
					}
					want(t, "control: "+move, g.run(g.writer, g.bindSQL(zero), g.bindSQL(eleven), move), nil)
					g.holds(table, "(11,666,%d)", eleven.Token)
				}
			})
		}
	}
}

// TestP51_NoRoleBlocksTheWayDown: a role with USAGE alone can't attach the fence's functions to a
// table of its own, and objects that roles without rights have built on a protected table, on
// the locks' schema and its types stop neither Unprotect nor Down.
func TestP51_NoRoleBlocksTheWayDown(t *testing.T) {
	t.Parallel()
	b := newBattlefield(t, pgtest.PoolOn(t, pgtest.Database(t)), "any lock")
	for _, kind := range []string{"distributed_locks", "lock_waiters", "fencing_epoch", "fencing_high_water", "fencing_secret", "protected_tables", "once_keys", "once_started", "lock_name"} {
		for _, column := range []string{kind, kind + "[]"} {
			wantCode(t, "a table on the type "+column, b.do("looker", "CREATE TABLE {m}.o (x {h}."+column+")"), "42501")
		}
	}
	want(t, "what a role with USAGE may build", b.do("looker", "CREATE VIEW {m}.v AS SELECT fence_token FROM {t}", "CREATE VIEW {m}.w AS SELECT ticket FROM {h}.distributed_locks",
		"CREATE VIEW {m}.p AS SELECT * FROM {h}.protected_tables", "CREATE VIEW {m}.f AS SELECT {h}.idle_limit(5)", "CREATE TABLE {m}.t (id int, k bigint DEFAULT {h}.advisory_key('a', 'b'))"), nil)
	want(t, "a view with a trigger", b.do("owner", "CREATE TABLE {m}.u (id int)", "CREATE VIEW {m}.uv AS SELECT * FROM {m}.u",
		"CREATE TRIGGER a AFTER INSERT ON {m}.uv FOR EACH STATEMENT EXECUTE FUNCTION {h}.fence_rows('fence_token', 'strict', '')"), nil)
	if n := value[int](b.fixture, "SELECT count(*) FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND prorettype = 'trigger'::regtype AND NOT has_function_privilege($2, oid, 'EXECUTE')",
		schema.Quote(b.schema), pgtest.RoleOf(b.roles["looker"])); n < 7 {
		t.Errorf("only %d functions of triggers are refused to a role with USAGE", n)
	}
	wantCode(t, "a trigger by a role with USAGE", b.do("looker", "CREATE TRIGGER x BEFORE INSERT ON {m}.t FOR EACH ROW EXECUTE FUNCTION {h}.fence_stamp()"), "42501")
	b.sql(b.named.Replace("DROP VIEW {m}.v")) // Unprotect alone does not drop what depends on the column
	ok(t, fencing.Unprotect(t.Context(), b.pool, b.table, fencing.WithSchema(b.schema)))
	b.protect(b.table)
	want(t, "a view on the token column", b.do("looker", "CREATE VIEW {m}.v AS SELECT fence_token FROM {t}"), nil)
	ok(t, migrations.Down(t.Context(), b.pool, migrations.WithSchema(b.schema)))
	want(t, "its table stays", b.do("looker", "INSERT INTO {m}.t (id) VALUES (1)"), nil)
	ok(t, migrations.Up(t.Context(), b.pool, migrations.WithSchema(b.schema)))
}
