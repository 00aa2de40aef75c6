//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestExamplesOfTheHelp runs the lines of the help. The programs in them are scripts that print
// their arguments.
func TestExamplesOfTheHelp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, program := range []string{"nightly-report", "migrate-and-restart", "psql", "sleep"} {
		if err := os.WriteFile(filepath.Join(c.dir, program), []byte("#!/bin/sh\necho "+program+" \"$@\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	examples := regexp.MustCompile(`(?m)^ +(?:0 3 \* \* \*)? *(pglock run .*)$`).FindAllStringSubmatch(runExamples, -1)
	want := []string{
		"nightly-report\nsleep 60\n",
		"nightly-report\n",
		"migrate-and-restart\n",
		"psql -v token=4 -f prices.sql\n",
	}
	if len(examples) != len(want) {
		t.Fatalf("%d examples, want %d", len(examples), len(want))
	}
	for i, example := range examples {
		r := c.startWith(func(cmd *exec.Cmd) { cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", example[1]} }).wait()
		if r.status != 0 || r.stdout != want[i] || r.stderr != "" {
			t.Errorf("%s: got %+v", example[1], r)
		}
	}
	if r := c.expect(0, "run", "--help"); !strings.Contains(r.stdout, runExamples) {
		t.Error("the help doesn't show the examples")
	}
}
