package leasetable_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// TestPlansIgnoreTheMomentOfAnalyze: the server samples the tables in the worst moment, and then a
// batch arrives that finds the opposite. Each statement must still read a few rows for each name.
// A nested loop over the table reads rows × names.
func TestPlansIgnoreTheMomentOfAnalyze(t *testing.T) {
	t.Parallel()
	const batch = 128
	// Each statement looks at a name at most eight times. A table of 256 rows may be read as a whole
	// as often, because that is cheaper than the index. A nested loop reads 128 × 128.
	const most = 8 * (batch + 256)
	names := manyNames(batch)
	for _, table := range []struct{ rows, waiters int }{{0, 0}, {256, 0}, {256, 256}, {1_000_000, 100_000}} {
		for _, sampled := range []string{"free", "held", "permits"} {
			t.Run(fmt.Sprintf("%d rows %s, %d waiters", table.rows, sampled, table.waiters), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				name := pgtest.Schema(t, pool)
				conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(t.Context())
				exec := func(sql string, args ...any) {
					t.Helper()
					if _, err := conn.Exec(t.Context(), schema.Render(sql, name), args...); err != nil {
						t.Fatalf("%s: %v", sql, err)
					}
				}
				const free = "SET capacity = NULL, in_use = NULL, holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp(), token = 1, request = NULL"
				const held = "SET capacity = NULL, in_use = NULL, holder = 'h', expires_at = clock_timestamp() + interval '1 hour', ended_at = NULL, token = 1"
				states := map[string]string{"free": free, "held": held}
				fill := func(from, to int) {
					exec(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, holder, capacity, in_use)
						SELECT 'name-' || n, 1, 1, clock_timestamp(), CASE WHEN $3 THEN clock_timestamp() + interval '1 hour' ELSE '-infinity' END,
							CASE WHEN $3 THEN 'h' END, CASE WHEN $4 THEN 2 END, CASE WHEN $4 THEN 0 END
						FROM generate_series($1::int, $2::int) AS n`, from, to-1, sampled == "held", sampled == "permits")
				}
				exec("ALTER TABLE pglock.distributed_locks SET (autovacuum_enabled = false)")
				exec("ALTER TABLE pglock.lock_waiters SET (autovacuum_enabled = false)")
				analyze := func() {
					exec("TRUNCATE pglock.distributed_locks, pglock.lock_waiters")
					fill(0, table.rows)
					exec(`INSERT INTO pglock.lock_waiters (name, client, expires_at)
						SELECT 'name-' || n, 'c', clock_timestamp() - interval '1 hour' FROM generate_series(1, $1::int) AS n`, table.waiters)
					exec("ANALYZE pglock.distributed_locks")
					exec("ANALYZE pglock.lock_waiters")
					fill(table.rows, 256)
				}
				analyze()
				exec("SELECT " + leasetable.Settings("false"))
				exec("SET plan_cache_mode = force_generic_plan")
				statements := leasetable.Statements(name)
				for verb, run := range map[string]struct {
					state string
					args  []any
				}{
					"acquire_full":       {"free", acquireArgs(names)},
					"acquire_fast_batch": {"free", acquireArgs(names)},
					"acquire_batch":      {"free", acquireArgs(names)},
					"peek":               {"held", []any{names, acquireArgs(names)[2], same(names, int64(1))}},
					"release_batch":      {"held", []any{names, same(names, int64(1)), same(names, int64(0)), true}},
					"check_grants":       {"held", []any{names, same(names, int64(1))}},
					"renew":              {"held", []any{names, same(names, int64(1)), same(names, int64(1)), nil}},
					"refresh_tickets":    {"held", []any{same(names, "c"), names, slices.Repeat([]int64{1}, len(names)), int64(1), same(names, int64(1))}},
				} {
					// A plan also depends on the number of pages, which each rolled back update adds to.
					sizes := 1
					if table.rows <= 256 {
						sizes = 40
						analyze()
					}
					exec("BEGIN")
					exec("UPDATE pglock.distributed_locks "+states[run.state]+" WHERE name = ANY ($1::text[])", names)
					for range sizes {
						exec("SAVEPOINT before")
						plan := explain(t, conn, verb, statements[verb], run.args)
						if got := plan.read(); got > most {
							t.Errorf("%s read %d rows for %d names:\n%s", verb, got, batch, plan.text)
						}
						if verb != "refresh_tickets" && plan.read() < batch {
							t.Errorf("%s read %d rows: it did not find the %d names", verb, plan.read(), batch)
						}
						exec("ROLLBACK TO before")
						exec("UPDATE pglock.distributed_locks SET version = 1 WHERE name = ANY ($1::text[])", names[:batch/4])
						exec("ROLLBACK TO before")
					}
					exec("ROLLBACK")
				}
			})
		}
	}
}

// planNode is a node of the output of EXPLAIN.
type planNode struct {
	Type     string     `json:"Node Type"`
	Rows     float64    `json:"Actual Rows"`
	Loops    float64    `json:"Actual Loops"`
	Filtered float64    `json:"Rows Removed by Filter"`
	Plans    []planNode `json:"Plans"`
	text     string
}

// read returns the number of rows that all scans read, of tables and of intermediate results.
func (n planNode) read() (rows int) {
	if len(n.Plans) == 0 && n.Type != "Result" {
		rows = int((n.Rows + n.Filtered) * n.Loops)
	}
	for _, p := range n.Plans {
		rows += p.read()
	}
	return rows
}

// explain executes a statement as a prepared one and returns its plan.
func explain(t *testing.T, conn *pgx.Conn, name, sql string, args []any) planNode {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "PREPARE "+name+" AS "+sql); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	literals := make([]string, len(args))
	for i, arg := range args {
		if arg == nil {
			literals[i] = "NULL"
			continue
		}
		text, err := json.Marshal(arg)
		if err != nil {
			t.Fatal(err)
		}
		literal := strings.Trim(string(text), `"`)
		if reflect.TypeOf(arg).Kind() == reflect.Slice {
			literal = "{" + strings.Trim(string(text), "[]") + "}"
		}
		literals[i] = "'" + literal + "'"
	}
	var out string
	err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE "+name+" ("+strings.Join(literals, ", ")+")",
		pgx.QueryExecModeSimpleProtocol).Scan(&out)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var got []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DEALLOCATE "+name); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	got[0].Plan.text = out
	return got[0].Plan
}
