//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestReleaseWithoutServer takes a bounded time, which signals don't cut short
// unsaid, and changes nothing about the command's status.
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
	pgtest.Eventually(t, patience, "pglock tells that it is still releasing", func() bool {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // one that comes too early is the command's
		return strings.Contains(read(t, p.stderr.Name()), "still being released")
	})
	r := p.wait()
	if r.status != 3 || !strings.Contains(r.stderr, "could not release the lock, it is free within 1m0s") {
		t.Errorf("got %+v", r)
	}
}
