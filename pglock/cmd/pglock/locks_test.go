//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// evil is a name that would clear a terminal, start a line, reverse text and hide some, if it were
// printed.
const evil = "a\x1b[2J\n\u009b31m\u202eb \"c\"\u2066\u200b\u00ad\ufeff\U000e0041\u3164"

// printable reports whether each character of s can be seen, and moves no cursor, except the ends of its lines.
func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r != '\n' && !text.Visible(r) }) < 0
}

func TestListShowAndRelease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := locktest.ClientOn(t, c.pool, pglock.WithSchema(c.schema))
	lease := func(name string) *pglock.Lease {
		l, err := client.TryAcquire(t.Context(), name, pglock.WithHolder(evil), pglock.WithLabels(map[string]string{evil: evil}))
		locktest.OK(t, err)
		return l
	}
	locktest.OK(t, lease("free").Release(t.Context()))
	l, _ := lease("held"), lease(evil)

	r := c.expect(0, "ls", "--all")
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "NAME ") || !printable(r.stdout) {
		t.Errorf("ls:\n%s", r.stdout)
	}
	at := strings.Index(lines[0], "STATE")
	for _, line := range lines[1:] {
		if state := strings.Fields(line[at:])[0]; state != "held" && state != "free" {
			t.Errorf("not aligned: %s", line)
		}
	}
	for _, filter := range [][]string{{"--prefix", "h"}, {"--pattern", "h?l*"}, {"--prefix", "h", "--holder", evil}, {"--prefix", "h", "--label", evil + "=" + evil}} {
		if r = c.expect(0, append([]string{"ls"}, filter...)...); strings.Count(r.stdout, "\n") != 2 || !strings.Contains(r.stdout, "\nheld ") {
			t.Errorf("ls %q:\n%s", filter, r.stdout)
		}
	}
	for _, filter := range [][]string{{"--waiting"}, {"--holder", "x"}, {"--label", "x=y"}} {
		if r = c.expect(0, append([]string{"ls"}, filter...)...); strings.Count(r.stdout, "\n") != 1 {
			t.Errorf("ls %q:\n%s", filter, r.stdout)
		}
	}
	c.expect(statusUsage, "ls", "--label", "x")
	r = c.expect(0, "ls", "--all", "--json")
	if strings.Count(r.stdout, "\n") != 3 || !printable(r.stdout) {
		t.Errorf("ls --json: %s", r.stdout)
	}
	found := false
	for line := range strings.Lines(r.stdout) {
		var k lockJSON
		if err := json.Unmarshal([]byte(line), &k); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		found = found || k.Name == evil && k.Holder == evil && k.Labels[evil] == evil && k.State == "held"
	}
	if !found {
		t.Errorf("ls --json does not keep a name: %s", r.stdout)
	}

	r = c.expect(0, "show", "held")
	for _, want := range []string{"state      held", "kind       lock", "\nlabel ", "token      " + fmt.Sprint(l.Token()), "remaining  "} {
		if !strings.Contains(r.stdout, want) || !printable(r.stdout) {
			t.Errorf("show: no %q:\n%s", want, r.stdout)
		}
	}
	if r = c.expect(1, "show", "hedl"); !strings.Contains(r.stderr, "hedl was never used") || !strings.Contains(r.stderr, "did you mean held?") {
		t.Errorf("show of a lock without a row: %s", r.stderr)
	}
	if r = c.expect(0, "show", "free"); !strings.Contains(r.stdout, "state        free") {
		t.Errorf("show of a free lock: %s", r.stdout)
	}
	var k lockJSON
	if r = c.expect(0, "show", evil, "--json"); json.Unmarshal([]byte(r.stdout), &k) != nil || k.Name != evil || !printable(r.stdout) {
		t.Errorf("show --json: %s", r.stdout)
	}

	if r = c.expect(statusUsage, "release", "held"); !strings.Contains(r.stderr, "--force") {
		t.Error(r.stderr)
	}
	c.expect(statusNoGrant, "release", "held", "--force", "--reason", "a test", "--token", "999999")
	c.expect(statusNoGrant, "release", "free", "--force", "--reason", "a test")
	c.expect(statusNoGrant, "release", "never", "--force", "--reason", "a test")
	if err := l.Err(); err != nil {
		t.Errorf("after releases of other grants: %v", err)
	}
	if r = c.expect(0, "release", "held", "--force", "--reason", evil); !printable(r.stdout) || !strings.Contains(r.stdout, fmt.Sprint(l.Token())) {
		t.Errorf("release: %s%s", r.stdout, r.stderr)
	}
	if r = c.expect(0, "show", "held"); !strings.Contains(r.stdout, `, revoked, "a`) || !strings.Contains(r.stdout, "state        free") || !strings.Contains(r.stdout, "\nlast label ") || strings.Contains(r.stdout, "\nlabel ") || !printable(r.stdout) {
		t.Errorf("show after the release:\n%s", r.stdout)
	}
	_ = l.Release(t.Context()) // it was lost
}

// TestClosedStdout: a reader of the list that ends early, as head does, is no error.
func TestClosedStdout(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	reader, writer, err := os.Pipe()
	locktest.OK(t, err)
	defer writer.Close()
	reader.Close()
	p := c.startWith(func(cmd *exec.Cmd) { cmd.Stdout = writer }, "ls")
	if r := p.wait(); r.status != statusSignal+int(syscall.SIGPIPE) || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
}

// TestLookingFromAStandby: what looks works there, and says what it can't know.
func TestLookingFromAStandby(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	primary := pgtest.Server(t, testserver.Options{})
	c.set("PGLOCK_DATABASE_URL", primary.URL())
	c.expect(0, "migrate", "up")
	c.held("n", "--ttl", "1h")
	standby := pgtest.Standby(t, primary)
	c.set("PGLOCK_DATABASE_URL", standby.URL())
	const note = "who waits is not known here"
	says := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
		}
	}
	for _, command := range []string{"ls", "show n"} {
		r := c.expect(0, strings.Fields(command)...)
		says(r.stderr, "pglock: this is a standby, ", note)
		says(r.stdout, "replica-1")
	}
	says(c.run("doctor", "--now").stderr, note) // the status is that of the server's settings
	says(c.expect(0, "ls").stdout, " ?")
	says(c.expect(0, "top", "--once").stdout, "From a standby, ", note, " ?", "a standby, which does not know who waits", "run doctor on the primary")
	says(c.expect(statusUnavailable, "ask", "n", "--reason", "r").stderr, "connect to the primary")
	says(c.expect(statusUnavailable, "run", "m", "--", "true").stderr, "the server is a standby")
	w := c.start("watch", "n")
	w.waitForStdout("? waiters")
	_, address := c.serves("--addr", "127.0.0.1:0", "--access", "revoke")
	for path, want := range map[string]string{"/": "Needs attention", "/locks": "replica-1", "/waiting": "A standby does not know", "/lock?name=n": "A standby does not know"} {
		_, body := fetch(t, address+path)
		says(body, "from a standby, ", note, want)
		if strings.Contains(body, `method="post"`) {
			t.Errorf("%s offers to change something: %s", path, body)
		}
	}
}
