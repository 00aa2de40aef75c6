package leasetable_test

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
)

// TestPlansAreKept: the server would plan a batch statement anew each time, which takes longer than
// to execute it, if it believed that a plan for these names is better. It tries five times before
// it decides, and may do so again after it has analyzed the table.
func TestPlansAreKept(t *testing.T) {
	t.Parallel()
	const tries, runs = 25, 50
	pool := pgtest.Pool(t)
	schema := pgtest.Schema(t, pool)
	client := locktest.Open(t, pool, pglock.WithSchema(schema))
	defer client.Close(t.Context())
	names := manyNames(128)
	for _, name := range names {
		l, err := client.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var knows bool
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int >= 140000").Scan(&knows); err != nil {
		t.Fatal(err)
	}
	if !knows {
		t.Skip("PostgreSQL 13 does not tell which plans it used")
	}
	statements := leasetable.Statements(schema)
	for verb, arguments := range statementArgs {
		sql := statements[verb]
		if _, err := conn.Prepare(t.Context(), verb, sql); err != nil {
			t.Fatal(err)
		}
		for _, many := range [][]string{names[:1], names, names[:2]} {
			for range runs {
				if _, err := conn.Exec(t.Context(), verb, arguments(many)...); err != nil {
					t.Fatalf("%s: %v", verb, err)
				}
			}
		}
		var planned int
		err := conn.QueryRow(t.Context(), "SELECT custom_plans FROM pg_prepared_statements WHERE name = $1", verb).Scan(&planned)
		if err != nil {
			t.Fatal(err)
		}
		if planned > tries {
			t.Errorf("%s was planned for the names at hand %d times", verb, planned)
		}
	}
}

// statementArgs returns the arguments of statements about the names.
var statementArgs = map[string]func(names []string) []any{
	"acquire_full":       acquireArgs,
	"peek":               func(names []string) []any { return []any{names, acquireArgs(names)[2], same(names, int64(1))} },
	"acquire_fast_batch": acquireArgs,
	"acquire_batch":      acquireArgs,
	"acquire_fast":       oneArgs,
	"acquire_new":        oneArgs,
	"acquire_permit":     func(names []string) []any { return append(oneArgs(names), 2, 1) },
	"acquire_all":        func(names []string) []any { return append([]any{names}, oneArgs(names)[1:]...) },
	"release_permit":     func(names []string) []any { return []any{names[0], int64(1), true} },
	"release_batch":      func(names []string) []any { return []any{names, same(names, int64(1)), same(names, int64(0)), true} },
	"check_grants":       func(names []string) []any { return []any{names, same(names, int64(1))} },
	"renew":              func(names []string) []any { return []any{names, same(names, int64(1)), same(names, int64(1)), nil} },
	"refresh_tickets": func(names []string) []any {
		return []any{same(names, "nobody"), names, slices.Repeat([]int64{1}, len(names)), int64(1), same(names, int64(1))}
	},
}

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("name-", i)
	}
	return names
}

// acquireArgs returns the arguments of the acquire statements, for leases of a microsecond.
func acquireArgs(names []string) []any {
	requests := make([]string, len(names))
	for i := range requests {
		requests[i] = fmt.Sprintf("00000000-0000-4000-8000-%012x", i)
	}
	return []any{names, same(names, "h"), requests, same(names, "{}"), same(names, int64(1)), same(names, int64(1)<<62)}
}

// oneArgs returns the arguments of acquire_fast for the first name.
func oneArgs(names []string) []any {
	all := acquireArgs(names)
	return []any{names[0], "h", all[2].([]string)[0], "{}", int64(1), int64(1) << 62}
}

// same returns one value for each name.
func same[T any](names []string, value T) []T {
	values := make([]T, len(names))
	for i := range values {
		values[i] = value
	}
	return values
}

// TestPlansSurviveGrowth: a session keeps the plans that it made when the tables were small, or large, and
// then they are of another size, before anything has analyzed them. Each statement and function still
// reads a few rows, also if the planner may choose other joins than those that the session asks for: of
// those it asks for, another version of the server may choose one that reads a whole table. The control has
// the server's own settings, with which only the functions for other programs read a few rows.
func TestPlansSurviveGrowth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what     string
		before   int // rows of each table
		settings bool
		planned  []string // while plans are made
	}{
		{"grown", 0, true, nil},
		{"shrunk", grownRows, true, nil},
		{"other joins", 0, true, []string{"enable_nestloop = off", "enable_hashjoin = on", "enable_mergejoin = on"}},
		{"control", 0, false, nil},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			name := pgtest.Schema(t, pool)
			conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
			locktest.OK(t, err)
			defer conn.Close(t.Context())
			exec := func(sql string, args ...any) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), schema.Render(sql, name), args...); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			tables := []string{"distributed_locks", "lock_waiters", "lock_permits", "once_keys", "nested_waits", "fencing_high_water"}
			for _, table := range tables {
				exec("ALTER TABLE pglock." + table + " SET (autovacuum_enabled = false)")
			}
			resize := func(rows int) { // without a command that makes the server plan anew
				exec("SET search_path = " + schema.Quote(name))
				for _, table := range tables {
					exec("DELETE FROM " + table)
				}
				for _, insert := range grown {
					exec(insert, rows)
				}
			}
			resize(tc.before)
			for _, table := range tables { // which also tells how large they are
				exec("VACUUM (ANALYZE) " + table)
			}
			exec("RESET search_path")
			if tc.settings {
				exec("SELECT " + leasetable.Settings("false"))
			}
			calls := growthCalls(name)
			const reads = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE schemaname = $1"
			run := func(verb, rows string) (read int) {
				var before int
				exec("BEGIN")
				exec(present[rows][0])
				exec(present[rows][1])
				exec("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) VALUES ('held', 7, 1, 'h', clock_timestamp(), clock_timestamp() + interval '1 hour')")
				locktest.OK(t, conn.QueryRow(t.Context(), reads, name).Scan(&before))
				if _, err := conn.Exec(t.Context(), verb, calls[verb].args...); err != nil {
					t.Fatalf("%s: %v", verb, err)
				}
				locktest.OK(t, conn.QueryRow(t.Context(), reads, name).Scan(&read))
				exec("ROLLBACK")
				exec("ROLLBACK")
				return read - before
			}
			for _, setting := range tc.planned {
				exec("SET " + setting)
			}
			for verb, c := range calls {
				_, err := conn.Prepare(t.Context(), verb, c.sql)
				locktest.OK(t, err)
				for range 8 { // after five of them the server may keep a plan
					for rows := range present {
						run(verb, rows)
					}
				}
			}
			resize(grownRows - tc.before)
			exec("SET search_path = pg_catalog")
			var worst int
			for _, verb := range slices.Sorted(maps.Keys(calls)) {
				for rows := range present {
					read := run(verb, rows)
					if worst = max(worst, read); read > calls[verb].most && (tc.settings || calls[verb].anywhere) {
						t.Errorf("%s of %s names read %d rows, at most %d are needed", verb, rows, read, calls[verb].most)
					}
				}
			}
			if !tc.settings && worst < grownRows {
				t.Errorf("control: no statement read more than %d rows", worst)
			}
		})
	}
}

// TestDeadRowsOfOthersCostNothing: while a transaction keeps the rows of waits that have ended, acquires and releases
// of other names do not read them.
func TestDeadRowsOfOthersCostNothing(t *testing.T) {
	t.Parallel()
	const most = 200 // pages
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	locktest.OK(t, err)
	defer func() { _ = old.Rollback(t.Context()) }()
	_, err = old.Exec(t.Context(), "SELECT 1")
	locktest.OK(t, err)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	locktest.OK(t, err)
	defer conn.Close(t.Context())
	for _, sql := range []string{"SET search_path = " + schema.Quote(name), strings.ReplaceAll(grown[1], "$1", fmt.Sprint(grownRows)), "DELETE FROM lock_waiters",
		"INSERT INTO distributed_locks (name, token, version, holder, acquired_at, expires_at) VALUES ('held', 7, 1, 'h', clock_timestamp(), clock_timestamp() + interval '1 hour')",
		strings.ReplaceAll(strings.ReplaceAll(grown[0], "md5(n::text)", "'name-' || n - 1"), "$1", "3"),
		"RESET search_path", "SELECT " + leasetable.Settings("false")} {
		_, err := conn.Exec(t.Context(), sql)
		locktest.OK(t, err)
	}
	pages := func(sql string, args []any) int {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		locktest.OK(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		var plans []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plans); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return plans[0].Plan.Hit + plans[0].Plan.Read
	}
	if n := pages("SELECT NOT EXISTS (SELECT FROM "+schema.Quote(name)+".lock_waiters)", nil); n <= most {
		t.Errorf("control: a look at all waiters read %d pages", n)
	}
	names := append(manyNames(3), "new") // the first three are free
	batch := acquireArgs(names)
	batch[5] = same(names, int64(math.MaxInt64)) // without a place in the queue
	calls := growthCalls(name)
	statements := leasetable.Statements(name)
	for verb, args := range map[string][]any{
		"acquire_fast_batch": batch, "acquire_batch": batch, "acquire_new": {"new", "h", batch[2].([]string)[0], "{}", int64(1), int64(math.MaxInt64)},
		"acquire_all":   {names[:3], "h", batch[2].([]string)[0], "{}", int64(1), int64(math.MaxInt64)},
		"release_batch": {[]string{"held"}, []int64{7}, []int64{0}, true},
		"release":       {"held", int64(7), int64(0), true},
	} {
		calls[verb] = growthCall{sql: statements[verb], args: args}
	}
	for verb, c := range calls {
		if !regexp.MustCompile("^(acquire|release|renew|handoff|join)").MatchString(verb) {
			continue
		}
		var n int
		for range 5 { // the first call in a session also reads the catalogs, and so does one after DDL of another test
			if n = pages(c.sql, c.args); n <= most {
				break
			}
			t.Logf("%s read %d pages", verb, n)
		}
		if n > most {
			t.Errorf("each call of %s read more than %d pages", verb, most)
		}
	}
}

const grownRows = 10_000

// present has the rows of some names, or none: a join with nothing looks at nothing.
var present = map[string][2]string{
	"new": {},
	"known": {
		"INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at) SELECT unnest('{name-0,name-1,name-2,s}'::text[]), 1, 1, clock_timestamp(), '-infinity'",
		"INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at) SELECT unnest('{name-0,name-1,name-2,s}'::text[]), unnest('{nobody,nobody,s,s/1}'::text[]), 1, clock_timestamp() + interval '10 s'",
	},
}

// grown fills the tables with that many rows each.
var grown = []string{
	"INSERT INTO distributed_locks (name, token, version, acquired_at, expires_at) SELECT md5(n::text), 1, 1, clock_timestamp(), '-infinity' FROM generate_series(1, $1::int) AS n",
	"INSERT INTO lock_waiters (name, client, expires_at) SELECT md5(n::text), 'c', clock_timestamp() + interval '1 hour' FROM generate_series(1, $1::int) AS n",
	"INSERT INTO lock_permits (name, token, weight, version, acquired_at, expires_at, request) SELECT md5(n::text), n, 1, 1, clock_timestamp(), clock_timestamp() + interval '1 hour', gen_random_uuid() FROM generate_series(1, $1::int) AS n",
	"INSERT INTO once_keys (key, fingerprint, state, created_at, started_at, expires_at) SELECT md5(n::text), sha256(''), 'done', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 hour' FROM generate_series(1, $1::int) AS n",
}

// growthCall is a statement, and how many rows it needs to read at most.
type growthCall struct {
	sql  string
	args []any
	most int

	anywhere bool // whatever the settings of the session are
}

// growthCalls returns the statements of leasetable, the functions of the SQL protocol, each for a few names, and a view.
func growthCalls(name string) map[string]growthCall {
	all := map[string]growthCall{}
	for verb, sql := range leasetable.Statements(name) {
		all[verb] = growthCall{arrayCall{text: sql, elements: statementElements[verb]}.render("", nil), nil, 200, false}
		if args, ok := statementArgs[verb]; ok {
			all[verb] = growthCall{sql, args(manyNames(3)), 200, false}
		}
	}
	all["prune"] = growthCall{leasetable.Statements(name)["prune"], []any{int64(1), int64(10), int64(20), schema.Quote(name) + ".distributed_locks"}, 3000, false}
	all["once_started"] = growthCall{"SELECT * FROM " + schema.Quote(name) + ".once_started", nil, 200, false} // of which monitoring asks often
	for verb, most := range map[string]int{
		"quit_queue":       grownRows + 200, // the rows of a client that closes, which no index finds
		"delete_dead_rows": 2 * grownRows,   // now and then, those of dead clients
	} {
		all[verb] = growthCall{all[verb].sql, nil, most, false}
	}
	for _, sql := range []string{
		"acquire('name-1', 'h')", "renew('name-1', 1)", "release('name-1', 1)", "wait_ticket('name-1', 'c', 'h')", "leave('name-1', 'c')", "watch('name-1', 'c')",
		"check_fence('name-1', 1)", "check_fence('held', 7)", "bind('held', 7)", "renew('held', 7)", "release('held', 7)", "acquire('held', 'h')", "once_claim('name-1', sha256(''), 0, NULL, NULL, NULL, NULL)",
	} {
		all[sql] = growthCall{"SELECT * FROM " + schema.Quote(name) + "." + sql, nil, 200, true}
	}
	return all
}
