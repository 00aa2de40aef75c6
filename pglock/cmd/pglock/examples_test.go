//go:build unix

package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/readme"
)

// TestExamplesOfTheHelp runs the lines of the help. The programs in them are scripts that print
// their arguments.
func TestExamplesOfTheHelp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, program := range []string{"nightly-report", "cleanup", "import", "migrate-and-restart", "psql", "build-and-publish"} {
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
		"build-and-publish\n",
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

// manual is the page that has all commands.
const manual = "../../../docs/reference/cli.md"

// TestCommandsOfTheManual runs the commands of the manual. The programs in them are empty scripts.
func TestCommandsOfTheManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manual)
	locktest.OK(t, err)
	c := newCLI(t)
	for _, program := range []string{"nightly-report", "clean-up", "migrate-and-restart", "call-it", "report", "transfer", "scheduler", "build-and-publish"} {
		locktest.OK(t, os.WriteFile(filepath.Join(c.dir, program), []byte("#!/bin/sh\n"), 0o700))
	}
	commands := readme.Parse(string(text)).Commands()
	if len(commands) < 13 {
		t.Fatalf("the manual has %d commands: the parser does not find them", len(commands))
	}
	for _, command := range commands {
		line := strings.ReplaceAll(command, "--grant-user shop", "--grant-user pg_monitor")
		r := c.sh(line).wait()
		if r.status != 0 && !strings.HasPrefix(line, "pglock doctor") { // which reports what it finds here
			t.Errorf("%s: got %+v", line, r)
		}
		if r.status == statusUsage {
			t.Errorf("%s: wrong usage: %s", line, r.stderr)
		}
	}
}

// TestCommandsOfTheDocuments checks that pglock accepts each command in the documents, without running it.
func TestCommandsOfTheDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := filepath.Join(dir, "arguments")
	stub := "#!/bin/sh\n{ printf '%s\\0' \"$@\"; printf '\\n\\0'; } >>" + seen + "\n"
	locktest.OK(t, os.WriteFile(filepath.Join(dir, "pglock"), []byte(stub), 0o700)) //nolint:gosec // a program
	documents, commands := 0, 0
	err := filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		documents++
		for _, line := range readme.Parse(string(text)).Commands() {
			commands++
			locktest.OK(t, os.WriteFile(seen, nil, 0o600))
			sh := exec.CommandContext(t.Context(), "/bin/sh", "-c", line) // with no program but the stub
			sh.Dir, sh.Env = dir, []string{"PATH=" + dir}
			_ = sh.Run()
			got, err := os.ReadFile(seen)
			if err != nil {
				return err
			}
			calls := strings.Split(strings.TrimSuffix(string(got), "\n\x00"), "\n\x00")
			if len(got) == 0 {
				t.Errorf("%s: %s: pglock is not called", path, line)
				continue
			}
			for _, call := range calls {
				if err := parse(strings.Split(strings.TrimSuffix(call, "\x00"), "\x00")); err != nil {
					t.Errorf("%s: %s: %v", path, line, err)
				}
			}
		}
		return nil
	})
	if err != nil || documents < 20 || commands < 25 {
		t.Errorf("%d documents with %d commands, %v", documents, commands, err)
	}
}

// parse checks the arguments of pglock as execute does before it runs a command.
func parse(args []string) error {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if !cmd.Runnable() || cmd.HasSubCommands() {
		return fmt.Errorf("%q is not a command by itself", cmd.CommandPath())
	}
	return nil
}

// TestManualListsTheFlags checks that the manual has a section for each command, with its flags and no
// others.
func TestManualListsTheFlags(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manual)
	locktest.OK(t, err)
	sections := map[string]string{}
	for _, section := range regexp.MustCompile(`(?m)^## `).Split(string(text), -1)[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		if cmd.Hidden || cmd.HasSubCommands() {
			return
		}
		section, found := sections[cmd.CommandPath()]
		if !found {
			t.Errorf("the manual has no section %q", cmd.CommandPath())
			return
		}
		var want, got []string
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { want = append(want, f.Name) })
		for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(section, -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the manual lists the flags %q, and there are %q", cmd.CommandPath(), got, want)
		}
	}
	check(newRoot())
}
