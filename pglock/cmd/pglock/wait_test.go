//go:build unix

package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// held starts a run that holds the lock until the test ends.
func (c *cli) held(name string, flags ...string) *call {
	c.t.Helper()
	p := c.start(append(append([]string{"run", "--holder", "replica-1", "--ttl", "5s"}, flags...), name, "--", "sh", "-c", "echo up; exec sleep 60")...)
	p.waitForStdout("up")
	return p
}

// TestBusyStatus: systemd and CronJobs treat 75 as a failure. The flag does not change the status
// of the command, or of an unreachable database.
func TestBusyStatus(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("n")
	for _, status := range []int{0, 3, 75, 255} {
		for wait, says := range map[string]string{"0": "held by replica-1", "100ms": "gave up"} {
			r := c.expect(status, "run", "--busy-status", strconv.Itoa(status), "--wait", wait, "n", "--", "sh", "-c", "echo ran")
			if !strings.Contains(r.stderr, says) || r.stdout != "" {
				t.Errorf("got %+v", r)
			}
		}
	}
	if r := c.expect(0, "run", "--busy-status", "0", "-q", "--wait", "0", "n", "--", "sh", "-c", "echo ran"); r.stderr+r.stdout != "" {
		t.Errorf("it is not quiet: %+v", r)
	}
	c.expect(75, "run", "--busy-status", "0", "--wait", "0", "another", "--", "sh", "-c", "exit 75")
	c.expect(statusNotFound, "run", "--busy-status", "0", "--wait", "0", "another", "--", "no-such-command")
	c.expect(statusUnavailable, "run", "--database-url", "postgres://127.0.0.1:1/none", "--busy-status", "0", "--wait", "0", "n", "--", "true")
}

func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("n")
	begin := time.Now()
	r := c.expect(statusNotAcquired, "run", "--wait", "400ms", "n", "--", "sh", "-c", "echo ran")
	if took := time.Since(begin); took < 400*time.Millisecond || took > pgtest.Patience/2 {
		t.Errorf("it took %v", took)
	}
	lines := strings.Split(r.stderr, "\n")
	if len(lines) != 3 || r.stdout != "" ||
		!strings.HasPrefix(lines[0], `pglock: waiting: acquire "n": held by replica-1 (token 1)`) ||
		!strings.HasPrefix(lines[1], `pglock: acquire "n": gave up after `) || !strings.Contains(lines[1], "held by replica-1") {
		t.Errorf("got %+v", r)
	}
}

// TestWaitGetsTheLockWhenItIsFree: signals that do not end programs do not end the wait either.
func TestWaitGetsTheLockWhenItIsFree(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	holder := c.held("n")
	waiter := c.start("run", "n", "--", "sh", "-c", "echo token $PGLOCK_TOKEN")
	waiter.waitForStderr(`waiting: acquire "n": held by replica-1`)
	waiter.signal(syscall.SIGUSR1)
	waiter.signal(syscall.SIGUSR2)
	if r := holder.end(); r.status != 128+15 {
		t.Errorf("the holder ended with %+v", r)
	}
	if r := waiter.wait(); r.status != 0 || !strings.HasPrefix(r.stdout, "token ") || r.stdout == "token 1\n" {
		t.Errorf("the waiter ended with %+v", r)
	}
}

// TestInterruptedWaitLeavesNothing: an interrupted wait leaves no lock, command or connection.
func TestInterruptedWaitLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		c := newCLI(t)
		holder := c.held("n")
		u := mustParse(t, pgtest.URL(t))
		app := fmt.Sprintf("interrupted-%d", sig)
		q := u.Query()
		q.Set("application_name", app)
		u.RawQuery = q.Encode()
		connections := func() int {
			return locktest.Scan[int](t, c.pool, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", app+" (pglock)")
		}
		waiter := c.start("run", "--database-url", u.String(), "n", "--", "sh", "-c", "echo ran")
		waiter.waitForStderr("waiting")
		if connections() == 0 {
			t.Error("the waiter's connection does not have its name")
		}
		waiter.signal(sig)
		r := waiter.wait()
		if r.status != 128+int(sig) || r.stdout != "" || !strings.Contains(r.stderr, "ended by a signal") {
			t.Errorf("%v: got %+v", sig, r)
		}
		if now, live := c.row("n"); now != "replica-1" || !live {
			t.Errorf("%v: now %q holds the lock", sig, now)
		}
		pgtest.Eventually(t, "its connections are gone", func() bool { return connections() == 0 })
		holder.end()
		c.expect(0, "run", "--wait", "0", "n", "--", "true") // the lock is free
	}
}
