package leasetable_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// arrayCall is a function or a statement with arrays. Its text has $n::type for each argument, and wants the element
// of each array.
type arrayCall struct {
	name, text string
	elements   map[string]string // by $n; otherwise by type
}

var argument = regexp.MustCompile(`(\$\d+)::([a-z]+)(\[\])?`)

// elements are of any use to most calls: s is a semaphore of two permits, of which 'holder' has one.
var elements = map[string]string{
	"text": "'s'", "bigint": "1", "int": "1", "integer": "1", "boolean": "true", "jsonb": "'{}'", "uuid": "'00000000-0000-0000-0000-000000000001'",
}

// statementElements are for the parameters of statements that are not names.
var statementElements = map[string]map[string]string{
	"acquire_full":       {"$3": elements["uuid"], "$4": "'{}'"},
	"acquire_fast_batch": {"$3": elements["uuid"], "$4": "'{}'"},
	"acquire_batch":      {"$3": elements["uuid"], "$4": "'{}'"},
	"acquire_all":        {"$4": "'{}'"},
	"acquire_slots":      {"$2": "2", "$6": "'{}'"},
	"nested_wait":        {"$4": "'holder'", "$7": "'holder'"},
	"peek":               {"$2": elements["uuid"]},
}

func (c arrayCall) element(parameter, kind string) string {
	if e, ok := c.elements[parameter]; ok {
		return e
	}
	return elements[kind]
}

// render returns the call in which one of its arrays is malformed.
func (c arrayCall) render(array string, malformed func(element, kind string) string) string {
	return argument.ReplaceAllStringFunc(c.text, func(a string) string {
		m := argument.FindStringSubmatch(a)
		e := c.element(m[1], m[2])
		switch {
		case m[1] == array:
			return malformed(e, m[2])
		case m[3] != "":
			return fmt.Sprintf("ARRAY[%s]::%s[]", e, m[2])
		case m[2] == "text" && strings.Contains(c.text, a+"::uuid"):
			return elements["uuid"] + "::text"
		case m[2] == "text" && strings.Contains(c.text, a+"::jsonb"):
			return elements["jsonb"] + "::text"
		}
		return e + "::" + m[2]
	})
}

func (c arrayCall) arrays() (parameters []string) {
	for _, m := range argument.FindAllStringSubmatch(c.text, -1) {
		if m[3] != "" && !slices.Contains(parameters, m[1]) {
			parameters = append(parameters, m[1])
		}
	}
	return parameters
}

// TestMalformedArrays passes nulls, two dimensions, another lower bound, other lengths and very many elements as each
// array of each function and statement that a user of locks may call. Each call fails or works, soon, and no row is left
// that another call meets.
func TestMalformedArrays(t *testing.T) {
	t.Parallel()
	many := 2_000
	if os.Getenv("PGLOCK_CHAOS") != "" {
		many = 1_000_000
	}
	malformations := map[string]func(element, kind string) string{
		"well formed":        func(e, kind string) string { return fmt.Sprintf("ARRAY[%s]::%s[]", e, kind) },
		"a null element":     func(e, kind string) string { return fmt.Sprintf("ARRAY[%s,NULL]::%s[]", e, kind) },
		"only a null":        func(_, kind string) string { return fmt.Sprintf("ARRAY[NULL]::%s[]", kind) },
		"a null first":       func(e, kind string) string { return fmt.Sprintf("ARRAY[NULL,%s]::%s[]", e, kind) },
		"null":               func(_, kind string) string { return fmt.Sprintf("NULL::%s[]", kind) },
		"empty":              func(_, kind string) string { return fmt.Sprintf("'{}'::%s[]", kind) },
		"two dimensions":     func(e, kind string) string { return fmt.Sprintf("ARRAY[[%s]]::%s[]", e, kind) },
		"a lower bound of 0": func(e, kind string) string { return fmt.Sprintf("array_fill(%s::%s, ARRAY[1], ARRAY[0])", e, kind) },
		"another length":     func(e, kind string) string { return fmt.Sprintf("ARRAY[%s,%[1]s]::%s[]", e, kind) },
		"very many":          func(e, kind string) string { return fmt.Sprintf("array_fill(%s::%s, ARRAY[%d])", e, kind, many) },
	}
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	user := pgtest.UserPool(t, pool, name)
	calls := arrayFunctions(t, pool, name, pgtest.RoleOf(user))
	if len(calls) < 6 {
		t.Fatalf("%d functions have arrays", len(calls))
	}
	for verb, text := range leasetable.Statements(name) {
		calls = append(calls, arrayCall{name: "statement " + verb, text: text, elements: statementElements[verb]})
	}
	for _, c := range calls {
		for _, array := range c.arrays() {
			for _, kind := range slices.Sorted(maps.Keys(malformations)) {
				what := fmt.Sprintf("%s: %s in %s", c.name, kind, array)
				sql := c.render(array, malformations[kind])
				tx, err := user.Begin(t.Context())
				locktest.OK(t, err)
				malformedCall(t, tx, what, sql, name, kind)
				locktest.OK(t, tx.Rollback(context.Background()))
			}
		}
	}
}

// TestAcquireSlotsRefusesArrays: it finds the numbers of each name by subscripts.
func TestAcquireSlotsRefusesArrays(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	for arrays, want := range map[string]string{
		"'{a,b}', '{2,2}', '{1,1}'":       "",
		"'{a,b}', '{2}', '{1,1}'":         "22023",
		"'{a,b}', '{2,2}', '{1}'":         "22023",
		"'{a}', '{2,2}', '{1}'":           "22023",
		"'{a}', '{2}', '{1,1}'":           "22023",
		"'{a,NULL}', '{2,2}', '{1,1}'":    "22023",
		"'{a,b}', '{2,NULL}', '{1,1}'":    "22023",
		"'{a,b}', '{2,2}', '{1,NULL}'":    "22023",
		"'[0:1]={a,b}', '{2,2}', '{1,1}'": "22023",
		"'{a,b}', '[0:1]={2,2}', '{1,1}'": "22023",
		"'{a,b}', '{2,2}', '[0:1]={1,1}'": "22023",
		"'{{a},{b}}', '{2,2}', '{1,1}'":   "0A000",
		"'{a,b}', '{{2},{2}}', '{1,1}'":   "0A000",
		"'{a,b}', '{2,2}', '{{1},{1}}'":   "0A000",
		"'{}', '{}', '{}'":                "22023",
		"(SELECT array_agg('n' || i) FROM generate_series(1, 129) AS i), array_fill(0, ARRAY[129]), array_fill(1, ARRAY[129])": "22023",
	} {
		_, err := pool.Exec(t.Context(), schema.Render("SELECT pglock.acquire_slots("+arrays+", gen_random_uuid(), 'holder', '{}', 1000000, 0, false)", name))
		if got := pgtx.SQLState(err); got != want {
			t.Errorf("%s: %v, want SQLSTATE %s", arrays, err, want)
		}
	}
}

// malformedCall makes the call and then looks for what it has left.
func malformedCall(t *testing.T, tx pgx.Tx, what, sql, name, kind string) {
	t.Helper()
	render := func(sql string) string { return schema.Render(sql, name) }
	exec := func(sql string) error {
		_, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	locktest.OK(t, exec(render("SET LOCAL statement_timeout = '120 s'; SELECT pglock.acquire('s', 'holder', permits => 2), "+
		"pglock.acquire('other', 'honest'); SAVEPOINT before")))
	err := exec(sql)
	if state := pgtx.SQLState(err); err != nil && (state == "" || state == pgtx.QueryCanceled || strings.HasPrefix(state, "XX")) {
		t.Errorf("%s: %v", what, err)
	}
	if err != nil {
		if kind == "well formed" {
			t.Errorf("%s: %v: this test does not know the call", what, err)
		}
		locktest.OK(t, exec("ROLLBACK TO before"))
	}
	var wrong string
	err = tx.QueryRow(t.Context(), render(`SELECT concat_ws('; ',
		(SELECT 'a gate: ' || l::text FROM pglock.distributed_locks AS l WHERE (l.capacity IS NULL) <> (l.in_use IS NULL) LIMIT 1),
		(SELECT 'two holders: ' || sum(coalesce(h.permits, 2)) FROM pglock.locks_held AS h WHERE h.name = 's' HAVING sum(coalesce(h.permits, 2)) > 2),
		(SELECT 'a wait: ' || left(n::text, 200) FROM pglock.nested_waits AS n
		 WHERE n.number > 0 AND (array_position(n.names, NULL) > 0 OR array_position(n.holds, NULL) > 0 OR cardinality(n.holds) > 1024) LIMIT 1),
		(SELECT 'a deadlock: ' || d FROM pglock.nested_wait('{s}', '{2}', ARRAY(SELECT token FROM pglock.locks_held WHERE name = 'other'), 'honest', gen_random_uuid()) AS d),
		(SELECT 'not granted: ' || a::text FROM pglock.acquire('new', 'honest') AS a WHERE NOT a.granted))`)).Scan(&wrong)
	if err != nil || wrong != "" {
		t.Errorf("%s: leaves %s, %v", what, wrong, err)
	}
}

// arrayFunctions returns the calls of all functions with arrays that the role may call.
func arrayFunctions(t *testing.T, pool *pgxpool.Pool, name, role string) (calls []arrayCall) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT p.proname::text, coalesce(p.proargnames, '{}'), array_agg(format_type(a.type, NULL) ORDER BY a.n)
		FROM pg_proc AS p CROSS JOIN unnest(p.proargtypes) WITH ORDINALITY AS a (type, n)
		WHERE p.pronamespace = $1::text::regnamespace AND has_function_privilege($2, p.oid, 'EXECUTE')
		GROUP BY p.oid, p.proname, p.proargnames
		HAVING bool_or(a.type IN (SELECT t.oid FROM pg_type AS t WHERE t.typcategory = 'A')) AND p.proname <> 'grant_slots' -- see acquire_slots
		`, schema.Quote(name), role)
	locktest.OK(t, err)
	var function string
	var names, types []string
	_, err = pgx.ForEachRow(rows, []any{&function, &names, &types}, func() error {
		c := arrayCall{name: function, elements: map[string]string{}}
		arguments := make([]string, len(types))
		for i, kind := range types {
			parameter := "$" + strconv.Itoa(i+1)
			arguments[i] = parameter + "::" + kind
			if i >= len(names) {
				continue
			}
			switch names[i] {
			case "permits":
				c.elements[parameter] = "2"
			case "holder", "holders":
				c.elements[parameter] = "'holder'"
			}
		}
		c.text = "SELECT " + schema.Quote(name) + "." + function + "(" + strings.Join(arguments, ", ") + ")"
		calls = append(calls, c)
		return nil
	})
	locktest.OK(t, err)
	return calls
}
