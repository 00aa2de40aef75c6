//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
)

// TestExamplesOfTheHelp runs the lines of the help. The programs in them are scripts that print
// their arguments.
func TestExamplesOfTheHelp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, program := range []string{"nightly-report", "cleanup", "import", "migrate-and-restart", "psql"} {
		if err := os.WriteFile(filepath.Join(c.dir, program), []byte("#!/bin/sh\necho "+program+" \"$@\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	examples := regexp.MustCompile(`(?m)^ +(?:0 3 \* \* \*)? *(pglock run .*)$`).FindAllStringSubmatch(help("run_examples"), -1)
	want := []string{
		"nightly-report\n",
		"cleanup\n",
		"import\n",
		"migrate-and-restart\n",
		"psql -v token=5 -f prices.sql\n",
	}
	if len(examples) != len(want) {
		t.Fatalf("%d examples, want %d", len(examples), len(want))
	}
	for i, example := range examples {
		r := c.sh(example[1]).wait()
		if r.status != 0 || r.stdout != want[i] || r.stderr != "" {
			t.Errorf("%s: got %+v", example[1], r)
		}
		if !strings.Contains(example[1], "--tick") && !strings.Contains(example[1], "--once-per") {
			continue
		}
		// The same line on another host, after the first one has ended.
		r = c.sh(example[1]).wait()
		if r.status != 0 || r.stdout != "" {
			t.Errorf("%s on another host: got %+v", example[1], r)
		}
	}
	if r := c.expect(0, "run", "--help"); !strings.Contains(r.stdout, help("run_examples")) {
		t.Error("the help doesn't show the examples")
	}
}

// TestCommandsOfTheREADME runs the commands of the README. The programs in them are empty scripts.
func TestCommandsOfTheREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	locktest.OK(t, err)
	c := newCLI(t)
	for _, program := range []string{"nightly-report", "clean-up", "migrate-and-restart", "call-it", "report", "transfer", "scheduler"} {
		locktest.OK(t, os.WriteFile(filepath.Join(c.dir, program), []byte("#!/bin/sh\n"), 0o700))
	}
	commands := regexp.MustCompile(`(?m)^    (pglock .*)$`).FindAllStringSubmatch(string(readme), -1)
	if len(commands) < 5 {
		t.Fatalf("the README has %d commands: the pattern does not find them", len(commands))
	}
	for _, command := range commands {
		line := strings.ReplaceAll(command[1], "--grant-user shop", "--grant-user pg_monitor")
		r := c.sh(line).wait()
		if r.status != 0 && !strings.HasPrefix(line, "pglock doctor") { // which reports what it finds here
			t.Errorf("%s: got %+v", line, r)
		}
		if r.status == statusUsage {
			t.Errorf("%s: wrong usage: %s", line, r.stderr)
		}
	}
}
