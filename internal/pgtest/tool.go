package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver"
)

const (
	// SkippedVariable names a file. Each test that is skipped for want of a tool appends a line: the
	// tool, a tab, and the test. testdata/skipped.sh sets the variable and prints the summary.
	SkippedVariable = "PGLOCK_TEST_SKIPPED"

	// WithoutVariable lists tools, separated by commas. Tests that need one of them are skipped, even
	// with CI=true.
	WithoutVariable = "PGLOCK_TEST_WITHOUT"
)

// NeedTool returns if find succeeds. Otherwise it records the test in the file that SkippedVariable
// names and skips it, or fails it with CI=true. It always skips the test if WithoutVariable lists
// the tool.
//
// The tool's name has no comma and no tab. The error of find says how to install the tool.
func NeedTool(tb testing.TB, tool string, find func() error) {
	tb.Helper()
	if err := lacks(tb, tool, find); err != nil {
		tb.Skipf("LEFT OUT for want of %s: %v", tool, err)
	}
}

// HaveTool is NeedTool for a part of a test: it does not end the test, except with CI=true, but
// reports whether the tool is there.
func HaveTool(tb testing.TB, tool string, find func() error) bool {
	tb.Helper()
	err := lacks(tb, tool, find)
	if err != nil {
		tb.Logf("a part of this test is LEFT OUT for want of %s: %v", tool, err)
	}
	return err == nil
}

// Program returns the path of one of PostgreSQL's programs, the newest on this machine. It calls
// NeedTool.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	var path string
	NeedTool(tb, name, func() (err error) {
		path, err = testserver.Program(name)
		return err
	})
	return path
}

// lacks returns why the test has to do without the tool, or nil.
//
// It reads SkippedVariable only for a skipped test. The go command caches a package's result only
// while the variables that its tests read are unchanged, and SkippedVariable differs in each run.
// So a package that skips something runs again each time, and all others can be cached.
func lacks(tb testing.TB, tool string, find func() error) error {
	tb.Helper()
	err := fmt.Errorf("%s lists it", WithoutVariable)
	if !slices.Contains(strings.Split(os.Getenv(WithoutVariable), ","), tool) {
		if err = find(); err == nil {
			return nil
		}
		if ci := os.Getenv("CI"); ci != "" && ci != "0" && ci != "false" {
			tb.Fatalf("pgtest: this test needs %s: with CI=true a test is skipped only if %s lists the tool: %v",
				tool, WithoutVariable, err)
		}
	}
	if failed := record(tool, tb.Name()); failed != nil {
		tb.Fatalf("pgtest: %v", failed)
	}
	return err
}

// record appends one line in one write: writes of several processes to a file that is open for
// appending do not mix.
func record(tool, test string) error {
	path := os.Getenv(SkippedVariable)
	if path == "" {
		return nil
	}
	dir, err := os.Getwd() // the package's directory
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s\t%s.%s\n", tool, filepath.Base(dir), test)
	return errors.Join(err, file.Close())
}
