package pgtest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

var errNotHere = errors.New("not here; install it")

// skipProbe takes a test's end for itself, so that a test can look at it.
type skipProbe struct {
	testing.TB
	failed, skipped, logged string
}

func (p *skipProbe) Name() string { return "TestProbe" }

func (p *skipProbe) Logf(format string, args ...any) { p.logged = fmt.Sprintf(format, args...) }

func (p *skipProbe) Fatalf(format string, args ...any) {
	p.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (p *skipProbe) Skipf(format string, args ...any) {
	p.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// probe runs a test on a goroutine of its own, since the test may end there.
func probe(t *testing.T, test func(testing.TB)) *skipProbe {
	t.Helper()
	p := &skipProbe{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(p)
	}()
	<-done
	return p
}

// TestAMissingToolIsNeverSilent goes through what a test does with and without a tool.
func TestAMissingToolIsNeverSilent(t *testing.T) {
	missing := func() error { return errNotHere }
	found := func() error { return nil }
	for name, tc := range map[string]struct {
		ci, without string
		find        func() error
		fails       bool
		recorded    bool
	}{
		"there":                    {find: found},
		"there, in CI":             {find: found, ci: "true"},
		"missing":                  {find: missing, recorded: true},
		"missing, CI=false":        {find: missing, ci: "false", recorded: true},
		"missing, in CI":           {find: missing, ci: "true", fails: true},
		"missing, CI=1":            {find: missing, ci: "1", fails: true},
		"missing, another is left": {find: missing, ci: "true", without: "tools,a", fails: true},
		"missing, left on request": {find: missing, ci: "true", without: "a,tool", recorded: true},
		"there, left on request":   {find: found, ci: "true", without: "tool", recorded: true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "skipped")
			t.Setenv("CI", tc.ci)
			t.Setenv(pgtest.WithoutVariable, tc.without)
			t.Setenv(pgtest.SkippedVariable, file)
			for _, whole := range []bool{true, false} {
				ended, has := true, false
				p := probe(t, func(tb testing.TB) {
					tb.Helper()
					if whole {
						pgtest.NeedTool(tb, "tool", tc.find)
					} else {
						has = pgtest.HaveTool(tb, "tool", tc.find)
					}
					ended = false
				})
				if (p.failed != "") != tc.fails {
					t.Errorf("whole %v: it failed with %q", whole, p.failed)
				}
				if (p.skipped != "") != (whole && tc.recorded) || (p.logged != "") != (!whole && tc.recorded) {
					t.Errorf("whole %v: it skipped with %q, logged %q", whole, p.skipped, p.logged)
				}
				if ended != (tc.fails || whole && tc.recorded) || !whole && has != (!tc.fails && !tc.recorded) {
					t.Errorf("whole %v: the test ended: %v; it has the tool: %v", whole, ended, has)
				}
			}
			text, err := os.ReadFile(file)
			want := ""
			if tc.recorded {
				want = strings.Repeat("tool\tpgtest.TestProbe\n", 2)
			}
			if string(text) != want || tc.recorded && err != nil {
				t.Errorf("the file has %q, %v", text, err)
			}
		})
	}
}

// TestAProgramOfPostgreSQL finds one that comes with every server, and misses one that does not
// exist.
func TestAProgramOfPostgreSQL(t *testing.T) {
	if path := pgtest.Program(t, "psql"); !strings.HasPrefix(filepath.Base(path), "psql") {
		t.Errorf("got %q", path)
	}
	t.Setenv(pgtest.SkippedVariable, "") // the probe below is no test that was left out
	p := probe(t, func(tb testing.TB) {
		tb.Helper()
		pgtest.Program(tb, "pg_no_such_program")
	})
	if said := p.failed + p.skipped; !strings.Contains(said, "pg_no_such_program") {
		t.Errorf("it said %q", said)
	}
}
