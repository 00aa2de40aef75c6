package pgtest_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestNamesAreOddAndNothingIsLeft creates schemas and databases, whose cleanups drop them.
func TestNamesAreOddAndNothingIsLeft(t *testing.T) { //nolint:tparallel // the subtest ends first, so that its cleanup can be looked at
	t.Parallel()
	pool := pgtest.Pool(t)
	var names []string
	t.Run("create", func(t *testing.T) {
		for range 30 { // other tests use names meanwhile
			name := pgtest.SchemaName(t)
			if len(name) > 63 {
				t.Errorf("%q has %d bytes, PostgreSQL would cut it", name, len(name))
			}
			if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize()); err != nil {
				t.Errorf("%q: %v", name, err)
			}
			names = append(names, name)
		}
		conn, err := pgx.Connect(t.Context(), pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) }) // while it is connected
		var database string
		if err := conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
			t.Fatal(err)
		}
		names = append(names, database)
	})
	all := strings.Join(names, "")
	for _, odd := range []string{" ", `"`, "-", "'", "U", "ü", "select", `\`} {
		if !strings.Contains(all, odd) {
			t.Errorf("no name has %q", odd)
		}
	}
	var left int
	err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = ANY($1))
		+ (SELECT count(*) FROM pg_database WHERE datname = ANY($1))`, names).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d were left behind, %v", left, err)
	}
}

func TestEventually(t *testing.T) {
	t.Parallel()
	begin, looks := time.Now(), 0
	pgtest.Eventually(t, "three looks", func() bool { looks++; return looks == 3 })
	if time.Since(begin) > 30*time.Second {
		t.Error("it waited for the deadline")
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		probe := &failProbe{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			pgtest.Eventually(probe, "the impossible", func() bool { return false })
		}()
		<-done
		if !strings.Contains(probe.message, "the impossible") || time.Since(begin) < pgtest.Patience {
			t.Errorf("it failed with %q", probe.message)
		}
	})
}
