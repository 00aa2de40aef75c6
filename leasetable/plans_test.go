package leasetable_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
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
	for verb, arguments := range map[string]func(names []string) []any{
		"acquire_full":       acquireArgs,
		"peek":               func(names []string) []any { return []any{names, acquireArgs(names)[2], same(names, int64(1))} },
		"acquire_fast_batch": acquireArgs,
		"acquire_fast":       oneArgs,
		"acquire_permit":     func(names []string) []any { return append(oneArgs(names), 2, 1) },
		"acquire_all":        func(names []string) []any { return append([]any{names}, oneArgs(names)[1:]...) },
		"release_permit":     func(names []string) []any { return []any{names[0], int64(1), true} },
		"release_batch":      func(names []string) []any { return []any{names, same(names, int64(1)), same(names, int64(0)), true} },
		"check_grants":       func(names []string) []any { return []any{names, same(names, int64(1))} },
		"renew":              func(names []string) []any { return []any{names, same(names, int64(1)), same(names, int64(1)), nil} },
		"refresh_tickets": func(names []string) []any {
			return []any{same(names, "nobody"), names, slices.Repeat([]int64{1}, len(names)), int64(1), same(names, int64(1))}
		},
	} {
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
