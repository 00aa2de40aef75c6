//go:build unix

package pgtest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestSkippedTestsAreCountedInOneLine runs the script that `make test` uses, with a command that
// leaves tests out. The command's output and exit status are kept.
func TestSkippedTestsAreCountedInOneLine(t *testing.T) {
	t.Parallel()
	const add = `{ printf 'pgbouncer\ta.TestA\n'; printf 'docker\tb.TestB/x\n'; printf 'pgbouncer\ta.TestA\n'; printf 'pgbouncer\tb.TestB/x\n'; } >>"$` +
		pgtest.SkippedVariable + `"; `
	for name, tc := range map[string]struct {
		command, want string
		status        int
	}{
		"some":   {add + "echo ok", "ok\nLEFT OUT: 2 tests, without docker: b.TestB/x; without pgbouncer: a.TestA, b.TestB/x\n", 0},
		"failed": {add + "echo FAIL; exit 3", "FAIL\nLEFT OUT: 2 tests, without docker: b.TestB/x; without pgbouncer: a.TestA, b.TestB/x\n", 3},
		"one":    {`printf 'psql\ta.TestA\n' >>"$` + pgtest.SkippedVariable + `"`, "LEFT OUT: 1 test, without psql: a.TestA\n", 0},
		"none":   {"echo ok", "ok\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "../../testdata/skipped.sh", "sh", "-c", tc.command)
			dir := t.TempDir()
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if status := cmd.ProcessState.ExitCode(); string(out) != tc.want || status != tc.status {
				t.Errorf("status %d:\n%s\nwant status %d:\n%s", status, out, tc.status, tc.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}

// TestSetUpWithoutAWayToInstall runs the set-up script with a PATH that has no make, no compiler
// and no installer. It names what is missing, or nothing if the tests are to do without.
func TestSetUpWithoutAWayToInstall(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	for _, tool := range []string{"date", "dirname", "grep", "mktemp", "paste", "rm", "sed", "sort", "tail"} {
		program, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(path, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for without, want := range map[string]struct {
		status int
		said   string
	}{
		"":        {69, "missing: a C compiler for the race detector; make"},
		"cc":      {69, "missing: make"},
		"cc,make": {0, ""},
	} {
		cmd := exec.CommandContext(t.Context(), "../../testdata/setup.sh", "cc", "make")
		cmd.Env = []string{"PATH=" + path, "TMPDIR=" + t.TempDir(), pgtest.WithoutVariable + "=" + without}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if status := cmd.ProcessState.ExitCode(); status != want.status || !strings.Contains(string(out), want.said) || (want.said == "") != (len(out) == 0) {
			t.Errorf("without %q: status %d:\n%s", without, status, out)
		}
	}
}
