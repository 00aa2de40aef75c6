package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// beating is a command that writes the time until it gets the signals. It says what it does on
// TERM.
const beating = `trap "echo TERM >> log; $1" TERM; echo $PPID > supervisor; echo $$ > pid; while :; do date +%s.%N >> beats; sleep 0.02; done`

// expired waits until the server has let the lock expire.
func (c *cli) expired(name string) {
	c.t.Helper()
	pgtest.Eventually(c.t, "the lease has expired", func() bool { _, live := c.row(name); return !live })
}

// TestSuspendedPglockEndsItsCommand: the supervisor ends the command of a suspended pglock before
// the server lets the lease expire, with TERM and, after the grace, with KILL. When pglock
// continues, it reports the loss.
func TestSuspendedPglockEndsItsCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		onTerm string
		flags  []string
	}{
		"ends on TERM": {"exit", nil},
		"ignores TERM": {":", nil},
		"also":         {"exit", []string{"--also", "other"}},
		"permits":      {"exit", []string{"--permits", "2"}},
		"tick":         {"exit", []string{"--tick", longTick}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			args := append([]string{"run", "--ttl", "20s", "--grace", "5s"}, test.flags...)
			p := c.start(append(args, "n", "--", "sh", "-c", beating, "sh", test.onTerm)...)
			pid := c.pid("pid")
			p.signal(syscall.SIGSTOP)
			gone(t, pid)
			if name == "ends on TERM" || name == "ignores TERM" { // their grant is the only row
				c.checkEndedInTime()
			}
			if log := read(t, filepath.Join(c.dir, "log")); log != "TERM\n" {
				t.Errorf("it got %q, want TERM once", log)
			}
			p.signal(syscall.SIGCONT)
			if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "stopping the command") {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestOvertakenPglockAndSupervisor is the control: if the supervisor is suspended as well, the
// command runs on when its lease has expired, beside the next holder.
func TestOvertakenPglockAndSupervisor(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--ttl", "2s", "n", "--", "sh", "-c", beating, "sh", "exit")
	pid, supervisor := c.pid("pid"), c.pid("supervisor")
	for _, suspended := range []int{p.cmd.Process.Pid, supervisor} {
		locktest.OK(t, syscall.Kill(suspended, syscall.SIGSTOP))
	}
	c.expired("n")
	next := c.expect(0, "run", "--wait", "0", "n", "--", "sh", "-c", `kill -0 "$1" && echo overlap`, "sh", strings.TrimSpace(read(t, filepath.Join(c.dir, "pid"))))
	if next.stdout != "overlap\n" {
		t.Error("the command has ended, although nothing could end it")
	}
	locktest.OK(t, syscall.Kill(supervisor, syscall.SIGCONT))
	gone(t, pid) // the supervisor finds that the time is over
	p.signal(syscall.SIGCONT)
	if r := p.wait(); r.status != statusLost {
		t.Errorf("got %+v", r)
	}
}

// TestShortSuspension: a command whose pglock continues in time keeps running, under the same
// grant.
func TestShortSuspension(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--ttl", "5m", "n", "--", "sh", "-c", `echo up; until test -e go; do sleep 0.02; done; exit 3`)
	p.waitForStdout("up")
	for range 3 {
		p.signal(syscall.SIGSTOP)
		pgtest.Eventually(t, "pglock is stopped", func() bool {
			return strings.Contains(read(t, filepath.Join("/proc", fmt.Sprint(p.cmd.Process.Pid), "stat")), ") T ")
		})
		p.signal(syscall.SIGCONT)
	}
	c.touch("go")
	if r := p.wait(); r.status != 3 || strings.Contains(r.stderr, "pglock:") {
		t.Errorf("got %+v", r)
	}
}
