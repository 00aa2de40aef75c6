//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestReleaseWithoutServer: a release without a server is bounded, keeps the command's status, and
// prints a message when a signal comes.
func TestReleaseWithoutServer(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	server := mustParse(t, pgtest.URL(t))
	proxy := faultproxy.New(t, server.Host)
	p := c.start("run", "--database-url", proxy.URL(server.String()), "--ttl", "1m", "n", "--", "sh", "-c", "echo $$ > pid; until test -e go; do sleep 0.02; done; exit 3")
	pid := c.pid("pid")
	proxy.Cut()
	c.touch("go")
	gone(t, pid)
	ended := time.Now()
	pgtest.Eventually(t, "pglock prints that it is still releasing", func() bool {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // an early signal goes to the command
		return strings.Contains(read(t, p.stderr.Name()), "still releasing the lock")
	})
	r := p.wait()
	if took := time.Since(ended); took > 5*time.Second {
		t.Errorf("pglock ended %v after the command", took)
	}
	if r.status != 3 || !strings.Contains(r.stderr, "can't release the lock: it expires within 1m0s") {
		t.Errorf("got %+v", r)
	}
}

// TestInterruptionWithoutServer: an interruption ends pglock within the same time, wherever it
// waits.
func TestInterruptionWithoutServer(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"run waits for the lock":      {"run", "n", "--", "true"},
		"run waits for a connection":  {"run", "other", "--", "true"},
		"migrate waits for an answer": {"migrate", "up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			server := mustParse(t, pgtest.URL(t))
			proxy := faultproxy.New(t, server.Host)
			c.held("n")
			if name != "run waits for the lock" {
				proxy.Cut()
			}
			p := c.start(append([]string{"--database-url", proxy.URL(server.String())}, args...)...)
			if name == "run waits for the lock" {
				p.waitForStderr("waiting")
				proxy.Cut()
			}
			pgtest.Eventually(t, "it has connected", func() bool { return proxy.Stats().Accepted > 0 })
			begin := time.Now()
			p.signal(syscall.SIGTERM)
			r := p.wait()
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if r.status != 128+int(syscall.SIGTERM) || !strings.Contains(r.stderr, "ended by a signal") {
				t.Errorf("got %+v", r)
			}
		})
	}
}
