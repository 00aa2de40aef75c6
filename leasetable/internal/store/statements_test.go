package store_test

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// TestEveryStatementPrepares has the server parse and plan each statement, in a schema whose name
// may need quoting.
func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	all := reflect.ValueOf(store.Statements(name))
	for i := range all.NumField() {
		field := all.Type().Field(i).Name
		sql := all.Field(i).String()
		if sql == "" || strings.Contains(sql, "--") {
			t.Errorf("%s: rendered as %q", field, sql)
		}
		if _, err := conn.Prepare(t.Context(), fmt.Sprint("s", i), sql); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestRenderQuotes: a schema's name can't break out of a statement.
func TestRenderQuotes(t *testing.T) {
	t.Parallel()
	got := schema.Render("-- a comment\nSELECT pglock.next_fencing_token() FROM pglock.t", `a"; DROP TABLE x; --`)
	if want := `SELECT "a""; DROP TABLE x; --".next_fencing_token() FROM "a""; DROP TABLE x; --".t`; got != want {
		t.Errorf("rendered %s", got)
	}
}

// TestTimingMatchesTheSQL compares constants with the SQL text that repeats them.
func TestTimingMatchesTheSQL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, sql, pattern string
		want               time.Duration
		times              int
	}{
		{"timing.HeadGrace in acquire_full.sql", store.SQL("acquire_full"), `interval '([0-9]+ ms)'`, timing.HeadGrace, 3},
		{"timing.LockTimeout in acquire_full.sql", store.SQL("acquire_full"), `'lock_timeout', '([0-9]+ms)'`, timing.LockTimeout, 1},
		{"timing.LockTimeout in release.sql", store.SQL("release"), `'lock_timeout', '([0-9]+ms)'`, timing.LockTimeout, 1},
		{"timing.LockTimeout in set_labels.sql", store.SQL("set_labels"), `'lock_timeout', '([0-9]+ms)'`, timing.LockTimeout, 1},
		{"timing.DeadRowAge in deleteDeadRowsSQL", store.DeleteDeadRowsSQL, `interval '([0-9]+ [a-z]+)'`, timing.DeadRowAge, 1},
	} {
		found := regexp.MustCompile(tc.pattern).FindAllStringSubmatch(tc.sql, -1)
		if len(found) != tc.times {
			t.Errorf("%s: found %d times, want %d: %q", tc.name, len(found), tc.times, found)
		}
		for _, match := range found {
			if got := duration(t, match[1]); got != tc.want {
				t.Errorf("%s: the SQL says %v, timing.go says %v", tc.name, got, tc.want)
			}
		}
	}
}

// duration parses an interval of PostgreSQL with one unit.
func duration(t *testing.T, interval string) time.Duration {
	t.Helper()
	parts := regexp.MustCompile(`^([0-9]+) ?([a-z]+)$`).FindStringSubmatch(interval)
	if parts == nil {
		t.Fatalf("no interval: %q", interval)
	}
	unit := map[string]string{"ms": "ms", "s": "s", "min": "m"}[parts[2]]
	d, err := time.ParseDuration(parts[1] + unit)
	if err != nil {
		t.Fatalf("interval %q: %v", interval, err)
	}
	return d
}
