package leasetable_test

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/migrations"
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
	for verb, sql := range leasetable.Statements(name) {
		if sql == "" || strings.Contains(sql, "--") {
			t.Errorf("%s: rendered as %q", verb, sql)
		}
		if _, err := conn.Prepare(t.Context(), verb, sql); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestEachStatementIsUsed: a method that names a statement which does not exist would send nothing.
func TestEachStatementIsUsed(t *testing.T) {
	t.Parallel()
	used := map[string]string{}
	paths, _ := filepath.Glob("*.go")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`t\.sql\["(\w+)"]`).FindAllStringSubmatch(string(text), -1) {
			used[name[1]] = leasetable.Statements(schema.Default)[name[1]]
		}
	}
	if all := leasetable.Statements(schema.Default); !maps.Equal(used, all) {
		t.Errorf("used: %v, known: %v", slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(all)))
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

// TestTimingMatchesTheSQL: every duration in a text of SQL is one of package timing, whichever text it
// is, and each of these is found.
func TestTimingMatchesTheSQL(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"delete_dead_rows": leasetable.Statements(schema.Default)["delete_dead_rows"]}
	for dir, files := range map[string]fs.FS{"sql": leasetable.Files, ".": migrations.FS} {
		paths, err := fs.Glob(files, path.Join(dir, "*.sql"))
		if err != nil || len(paths) < 6 {
			t.Fatalf("%d files, %v", len(paths), err)
		}
		for _, name := range paths {
			text, err := fs.ReadFile(files, name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	lockTimeouts := map[time.Duration]int{timing.LockTimeout: 0, timing.PermitWait: 0, timing.GuardWait: 0}
	intervals := map[time.Duration]int{timing.HeadGrace: 0, timing.DeadRowAge: 0, timing.FirstLook: 0, timing.TicketTTL: 0, timing.KeepTicket: 0, time.Microsecond: 0}
	for pattern, allowed := range map[string]map[time.Duration]int{
		`'lock_timeout', '([^']*)'`: lockTimeouts, `interval '([^']*)'`: intervals,
	} {
		for name, text := range texts {
			for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				d := duration(t, match[1])
				if _, ok := allowed[d]; !ok {
					t.Errorf("%s: %s is no constant of package timing", name, match[0])
				}
				allowed[d]++
			}
		}
		for d, n := range allowed {
			if n == 0 {
				t.Errorf("no text has the constant %v as %s", d, pattern)
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
	unit := map[string]string{"microsecond": "us", "ms": "ms", "s": "s", "min": "m"}[parts[2]]
	d, err := time.ParseDuration(parts[1] + unit)
	if err != nil {
		t.Fatalf("interval %q: %v", interval, err)
	}
	return d
}
