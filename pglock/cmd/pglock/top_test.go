//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestTopOnce prints all screens, or one, as text.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("account:17", "--label", "team=x")
	all := c.expect(0, "top", "--once").stdout
	for _, want := range []string{"Now\nNOW", "Held\nNAME", "account:17", "team=x", "Doctor\nIS", "connection"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in\n%s", want, all)
		}
	}
	if got := c.expect(0, "top", "--once", "--screen", "waiting").stdout; !strings.HasPrefix(got, "NAME") || strings.Contains(got, "account") {
		t.Errorf("%s", got)
	}
	if got := c.expect(0, "top", "--once", "--screen", "held", "--filter", "*:18").stdout; strings.Contains(got, "account") {
		t.Errorf("%s", got)
	}
	c.expect(statusUsage, "top")
	c.expect(statusUsage, "top", "--once", "--screen", "x")
	c.expect(statusUsage, "top", "--once", "--every", "1ms")
}

// TestTopInATerminal: keys, actions and sizes, in tmux.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	var tmux string
	pgtest.NeedTool(t, "tmux", func() (err error) { tmux, err = exec.LookPath("tmux"); return err })
	c := newCLI(t)
	c.held("account:17")
	c.held("other")
	socket := filepath.Join(t.TempDir(), "s")
	do := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(tmux, append([]string{"-S", socket, "-f", "/dev/null"}, args...)...)
		cmd.Env, cmd.Dir = append(c.env, "TERM=xterm-256color", "LC_ALL=C.UTF-8"), c.dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	shows := func(what string, texts ...string) {
		t.Helper()
		var screen string
		seen := func() bool {
			screen = do("capture-pane", "-p", "-t", "t")
			for _, text := range texts {
				if !strings.Contains(screen, text) {
					return false
				}
			}
			return true
		}
		defer func() {
			if t.Failed() {
				t.Logf("%s\n%s", what, screen)
			}
		}()
		pgtest.Eventually(t, what, seen)
	}
	press := func(keys ...string) { do(append([]string{"send-keys", "-t", "t"}, keys...)...) }
	do("new-session", "-d", "-x", "80", "-y", "24", "-s", "t", filepath.Join(c.dir, "pglock")+" top; echo ended with $?; sleep 600")
	t.Cleanup(func() { _ = exec.Command(tmux, "-S", socket, "kill-server").Run() })
	shows("the first screen", "1now 2held", "9doctor", "WHAT NEEDS ATTENTION", "q quit")
	press("9")
	shows("the doctor", "connection", "notification queue", "in use")
	press("2")
	shows("the locks", "account:17", "other")
	press("/")
	press("acc", "Enter")
	shows("the filter", "filter acc")
	press("Enter")
	shows("a detail", "state", "unless renewed")
	press("q")
	press("r")
	press("deploy", "Enter")
	shows("a request", "asked to release: grant")
	press("K")
	press("account:17", "Enter")
	press("by hand", "Enter")
	shows("a revocation", "revoked: grant")
	shows("nothing is left of it", "Nothing here matches the filter acc.")
	if holder, _ := c.row("account:17"); holder != "" {
		t.Errorf("it is held by %q", holder)
	}
	do("resize-window", "-t", "t", "-x", "200", "-y", "50")
	press("Escape")
	shows("a wide screen", "CHANGES/S", "other")
	press("1")
	shows("the last actions", "revoked account:17", "by hand (by ", "asked to release account:17")
	press("e")
	shows("the export", "exported 1 locks to ")
	if files, _ := filepath.Glob(filepath.Join(c.dir, "pglock-*.json")); len(files) != 1 {
		t.Errorf("exported %q", files)
	}
	press("q")
	shows("the end", "ended with 0")
	do("new-session", "-d", "-x", "80", "-y", "24", "-s", "dumb", "TERM=dumb "+filepath.Join(c.dir, "pglock")+" top; echo ended with $?; sleep 600")
	pgtest.Eventually(t, "a terminal without a screen", func() bool {
		screen := do("capture-pane", "-p", "-t", "dumb")
		return strings.Contains(screen, "use --once") && strings.Contains(screen, "ended with 64")
	})
}
