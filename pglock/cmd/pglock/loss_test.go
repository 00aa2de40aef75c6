//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestLossTerminatesTheGroup: who heeds TERM is not killed, and a command that then
// ends with 0 has still lost its lock.
func TestLossTerminatesTheGroup(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("exit", "exit 0", "--ttl", "2s", "--grace", "1m")
	child, parent := c.pid("child"), c.pid("parent")
	c.steal("n")
	r := p.wait()
	if r.status != statusLost || strings.Count(r.stderr, "pglock:") != 1 ||
		!strings.Contains(r.stderr, `pglock: lost the lock "n" (token 1): `) || !strings.Contains(r.stderr, "stopping the command") {
		t.Errorf("got %+v", r)
	}
	gone(t, child)
	gone(t, parent)
	if log := read(t, filepath.Join(c.dir, "log")); len(log) != len("child\nparent\n") {
		t.Errorf("TERM reached only: %s", log)
	}
	if holder, _ := c.row("n"); holder != "thief" {
		t.Errorf("now %q holds the lock", holder)
	}
}

// TestLossKillsAfterTheGrace whoever ignores TERM, the command or a child of its.
func TestLossKillsAfterTheGrace(t *testing.T) {
	t.Parallel()
	for name, does := range map[string][2]string{
		"both":       {":", ":"},
		"the child":  {":", "exit 0"},
		"the parent": {"exit", ":"},
	} {
		c := newCLI(t)
		p := c.family(does[0], does[1], "--ttl", "2s", "--grace", "300ms")
		child, parent := c.pid("child"), c.pid("parent")
		c.steal("n")
		p.says("lost the lock")
		begin := time.Now()
		r := p.wait()
		if took := time.Since(begin); r.status != statusLost || !strings.Contains(r.stderr, "did not end within 300ms: killing them") || took < 200*time.Millisecond {
			t.Errorf("%s: after %v: %+v", name, took, r)
		}
		gone(t, child)
		gone(t, parent)
	}
}

// TestStoppedCommandIsTerminated: TERM alone would not reach it.
func TestStoppedCommandIsTerminated(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("exit", "exit 0", "--ttl", "2s", "--grace", "1m")
	parent := c.pid("parent")
	if err := syscall.Kill(parent, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.steal("n")
	if r := p.wait(); r.status != statusLost {
		t.Errorf("got %+v", r)
	}
}

// TestStoppedPglockLosesTheLock: it can't renew, and the command goes on meanwhile.
// Both are told once it continues.
func TestStoppedPglockLosesTheLock(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--ttl", "2s", "n", "--", "sh", "-c", "echo up; exec sleep 60")
	p.prints("up")
	p.signal(syscall.SIGSTOP)
	pgtest.Eventually(t, patience, "the lease has expired", func() bool { _, live := c.row("n"); return !live })
	c.expect(0, "run", "--wait", "0", "n", "--", "true")
	p.signal(syscall.SIGCONT)
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "lost the lock") {
		t.Errorf("got %+v", r)
	}
}

// cut starts a run whose command heeds no TERM, cuts its network, and returns the
// command's pid.
func (c *cli) cut(flags ...string) (p *call, pid int) {
	c.t.Helper()
	server := mustParse(c.t, pgtest.URL(c.t))
	proxy := faultproxy.New(c.t, server.Host)
	args := append([]string{"run", "--database-url", proxy.URL(server.String())}, flags...)
	p = c.start(append(args, "n", "--", "sh", "-c", `trap "" TERM; echo $$ > pid; while :; do sleep 0.02; done`)...)
	pid = c.pid("pid")
	proxy.Cut()
	return p, pid
}

// TestGraceIsInsideTheLease: when the network is cut, the command is dead before the
// server could give the lock to another, though it ignores TERM (I3).
func TestGraceIsInsideTheLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p, pid := c.cut("--ttl", "8s", "--grace", "2s")
	gone(t, pid)
	if _, live := c.row("n"); !live {
		t.Error("the lease had expired when the command was killed")
	}
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "the last renewal") {
		t.Errorf("got %+v", r)
	}
}

// TestGraceBeyondTheLease is the control: more than half of the TTL can't be had.
func TestGraceBeyondTheLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p, pid := c.cut("--ttl", "2s", "--grace", "1m")
	pgtest.Eventually(t, patience, "the lease has expired", func() bool { _, live := c.row("n"); return !live })
	if !alive(pid) {
		t.Error("the command was killed within its grace")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := p.wait(); r.status != statusLost {
		t.Errorf("got %+v", r)
	}
}

// TestLossAtTheEnd: the command has ended, and only the release finds out.
func TestLossAtTheEnd(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--ttl", "1h", "n", "--", "sh", "-c", "echo up; until test -e go; do sleep 0.02; done")
	p.prints("up")
	c.steal("n")
	c.touch("go")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "lost the lock") || strings.Contains(r.stderr, "stopping") {
		t.Errorf("got %+v", r)
	}
}

// TestLossWithClosedStderr: a message that nobody reads does not end pglock, whose
// command would run on until it is killed.
func TestLossWithClosedStderr(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	p := c.startWith(func(cmd *exec.Cmd) { cmd.Stderr = writer },
		"run", "--ttl", "2s", "n", "--", "sh", "-c", `exec 2>/dev/null; trap "sleep 0.2; echo cleaned up; exit" TERM; echo up; while :; do sleep 0.02; done`)
	p.prints("up")
	reader.Close()
	c.steal("n")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stdout, "cleaned up") {
		t.Errorf("got %+v", r)
	}
}
