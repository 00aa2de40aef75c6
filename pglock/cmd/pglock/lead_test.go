//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// leads is a command that prints that it leads, and ends on TERM.
var leads = []string{"--", "sh", "-c", `trap 'exit 0' TERM; echo "leads $PGLOCK_TOKEN"; while :; do sleep 0.05; done`}

// TestLead: one of two hosts leads. Others see its payload. When its command ends, the other one leads.
func TestLead(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	first := c.start(append([]string{"lead", "--payload", "host-1:80", "--holder", "first", "n"}, leads...)...)
	first.waitForStdout("leads 1\n")
	if r := c.expect(0, "show", "n"); !strings.Contains(r.stdout, "payload=host-1:80") || !strings.Contains(r.stdout, "first") {
		t.Errorf("show: %s", r.stdout)
	}
	var shown struct{ Labels map[string]string }
	if r := c.expect(0, "ls", "--json"); json.Unmarshal([]byte(r.stdout), &shown) != nil || shown.Labels["payload"] != "host-1:80" {
		t.Errorf("ls: %s", r.stdout)
	}
	second := c.start(append([]string{"lead", "--payload", "host-2:80", "n"}, leads...)...)
	second.waitForStderr(`waiting: "n" is led by first (token 1): host-1:80`)
	pgtest.Eventually(t, "the second host waits", func() bool { return strings.Contains(c.run("show", "n").stdout, "waiter 1") })
	if r := first.end(); r.status != 0 || strings.Contains(r.stdout, "leads 2") {
		t.Errorf("the first leader: %+v", r)
	}
	second.waitForStdout("leads ")
	second.end()
}

// TestLeadAgainAfterALoss: the command is stopped, and runs again when this host leads again.
func TestLeadAgainAfterALoss(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start(append([]string{"lead", "--ttl", "2s", "n"}, leads...)...)
	p.waitForStdout("leads ")
	c.expect(0, "release", "n", "--force", "--reason", "a test")
	pgtest.Eventually(t, "it leads again", func() bool { return strings.Count(read(t, p.stdout.Name()), "leads ") == 2 })
	if r := p.end(); r.status != 0 || strings.Count(r.stdout, "leads ") != 2 || !strings.Contains(r.stderr, "a test") {
		t.Errorf("%+v", r)
	}
}

// TestLeadOverHTTP: each answer is that of the row, also after somebody else has changed it.
func TestLeadOverHTTP(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	ask := func(p *call, path string) (status int, body string) {
		t.Helper()
		var address string
		pgtest.Eventually(t, "it listens", func() bool {
			_, after, found := strings.Cut(read(t, p.stderr.Name()), "listening on ")
			address, _, _ = strings.Cut(after, "\n")
			return found
		})
		r, err := http.Get("http://" + address + path)
		locktest.OK(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		locktest.OK(t, err)
		return r.StatusCode, string(text)
	}
	answers := func(p *call, path string, status int, text string) {
		t.Helper()
		var got int
		var body string
		defer func() {
			if t.Failed() {
				t.Logf("%s: %d %s", path, got, body)
			}
		}()
		pgtest.Eventually(t, path, func() bool {
			got, body = ask(p, path)
			return got == status && strings.Contains(body, text)
		})
	}
	first := c.start(append([]string{"lead", "--http", "127.0.0.1:0", "--payload", "host-1:80", "--holder", "first", "n"}, leads...)...)
	first.waitForStdout("leads 1\n")
	second := c.start(append([]string{"lead", "--http", "127.0.0.1:0", "n"}, leads...)...)
	for _, p := range []*call{first, second} {
		answers(p, "/leader", 200, `"leader":"first","payload":"host-1:80","since":`)
		answers(p, "/healthz", 200, "true")
	}
	answers(first, "/self", 200, "true")
	answers(second, "/self", 503, "false")
	c.steal("n")
	if status, body := ask(first, "/self"); status != 503 { // although it has not noticed yet
		t.Errorf("%d %s", status, body)
	}
	answers(second, "/leader", 200, `"leader":"thief"`)
	locktest.Scan[string](t, c.pool, "UPDATE "+c.table()+" SET holder = NULL, expires_at = '-infinity', labels = '{}' WHERE name = 'n' RETURNING name::text")
	sidecar := c.start("lead", "--http", "127.0.0.1:0", "beside")
	answers(sidecar, "/self", 200, "true")
	if r := sidecar.end(); r.status != 0 {
		t.Errorf("%+v", r)
	}
	if holder, _ := c.row("beside"); holder != "" {
		t.Errorf("the sidecar has ended, and %s leads", holder)
	}
	if r := c.expect(statusUsage, "lead", "--http", "nowhere", "n", "--", "true"); !strings.Contains(r.stderr, "--http") {
		t.Errorf("%s", r.stderr)
	}
}

// TestLeadUsage: wrong usage has the status 64, and the command's own status is pglock's.
func TestLeadUsage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.expect(statusUsage, "lead", "n")
	c.expect(statusUsage, "lead", "n", "--tick", "1h", "--", "true")
	c.expect(statusUsage, "lead", "--payload", strings.Repeat("x", 17000), "n", "--", "true")
	c.expect(statusUsage, "lead", "--grace", "20s", "n", "--", "true")
	c.expect(7, "lead", "-q", "n", "--", "sh", "-c", "exit 7")
	c.expect(statusNotFound, "lead", "n", "--", "no-such-command")
}
