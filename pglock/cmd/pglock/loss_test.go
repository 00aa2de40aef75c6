//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestStoppedCommandIsTerminated: a stopped process does not handle TERM before it is continued.
func TestStoppedCommandIsTerminated(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("exit", "exit 0", "--ttl", "20s", "--grace", "9s")
	parent := c.pid("parent")
	locktest.OK(t, syscall.Kill(parent, syscall.SIGSTOP))
	c.steal("n")
	if r := p.wait(); r.status != statusLost {
		t.Errorf("got %+v", r)
	}
}

// cut starts a run whose command ignores TERM, cuts its network, and returns the command's pid.
func (c *cli) cut(flags ...string) (p *call, pid int) {
	c.t.Helper()
	server := mustParse(c.t, pgtest.URL(c.t))
	proxy := faultproxy.New(c.t, server.Host)
	args := append([]string{"run", "--database-url", proxy.URL(server.String())}, flags...)
	p = c.start(append(args, "n", "--", "sh", "-c", `trap "" TERM; echo $$ > pid; while :; do date +%s.%N >> beats; sleep 0.02; done`)...)
	pid = c.pid("pid")
	proxy.Cut()
	return p, pid
}

// checkEndedInTime checks that the command's last beat was before the expiry of its lease. The row
// still has the expiry, and the server uses this machine's clock.
func (c *cli) checkEndedInTime() {
	c.t.Helper()
	beats := strings.Fields(read(c.t, filepath.Join(c.dir, "beats")))
	if len(beats) < 10 {
		c.t.Fatalf("only %d beats", len(beats))
	}
	left := locktest.Scan[float64](c.t, c.pool, "SELECT extract(epoch FROM expires_at) - $1::text::numeric FROM "+c.table(), beats[len(beats)-1])
	if left <= 0 {
		c.t.Errorf("the command was still alive %v s after its lease had expired", -left)
	}
}

// TestGraceIsInsideTheLease: after the network is cut, a command that ignores TERM is killed before
// the server could grant the lock to another holder (I3), also with the longest valid grace.
func TestGraceIsInsideTheLease(t *testing.T) {
	t.Parallel()
	for _, grace := range []string{"5s", "9999ms"} {
		t.Run(grace, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			p, pid := c.cut("--ttl", "20s", "--grace", grace)
			gone(t, pid)
			c.checkEndedInTime()
			if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "last renewal") {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestLossFoundByTheRelease: the command has ended, and the release reports the loss.
func TestLossFoundByTheRelease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--ttl", "1h", "n", "--", "sh", "-c", "echo up; until test -e go; do sleep 0.02; done")
	p.waitForStdout("up")
	c.steal("n")
	c.touch("go")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "lost the lock") || strings.Contains(r.stderr, "stopping") {
		t.Errorf("got %+v", r)
	}
}

// TestLossWithClosedStderr: a message to a closed stderr does not end pglock before it has ended
// the command.
func TestLossWithClosedStderr(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	reader, writer, err := os.Pipe()
	locktest.OK(t, err)
	defer writer.Close()
	p := c.startWith(func(cmd *exec.Cmd) { cmd.Stderr = writer },
		"run", "--ttl", "2s", "n", "--", "sh", "-c", `exec 2>/dev/null; trap "sleep 0.2; echo cleaned up; exit" TERM; echo up; while :; do sleep 0.02; done`)
	p.waitForStdout("up")
	reader.Close()
	c.steal("n")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stdout, "cleaned up") {
		t.Errorf("got %+v", r)
	}
}
