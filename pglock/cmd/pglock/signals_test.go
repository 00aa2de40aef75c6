//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// TestSignalsAreForwarded sends each signal to pglock. The command logs it.
func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "n", "--", "sh", "-c", `
		for s in HUP INT QUIT USR1 USR2; do trap "echo $s" $s; done
		trap "echo TERM; exit 9" TERM
		echo up
		while :; do sleep 0.02; done`)
	p.waitForStdout("up")
	for _, test := range []struct {
		sig  syscall.Signal
		name string
	}{
		{syscall.SIGHUP, "HUP"}, {syscall.SIGINT, "INT"}, {syscall.SIGQUIT, "QUIT"},
		{syscall.SIGUSR1, "USR1"}, {syscall.SIGUSR2, "USR2"}, {syscall.SIGTERM, "TERM"},
	} {
		p.signal(test.sig)
		p.waitForStdout("\n" + test.name + "\n")
	}
	if r := p.wait(); r.status != 9 || strings.Contains(r.stderr, "pglock:") {
		t.Errorf("got %+v", r)
	}
	if holder, _ := c.row("n"); holder != "" {
		t.Errorf("the lock is still held by %s", holder)
	}
}

// family is a command with a child. Both log TERM. The first argument is what the child does on
// TERM, the second what the parent does.
const family = `
	sh -c 'trap "echo child >> log; '"$1"'" TERM; echo $$ > child; while :; do sleep 0.02; done' &
	trap 'echo parent >> log; '"$2" TERM
	until test -s child; do sleep 0.02; done
	echo $$ > parent
	while :; do sleep 0.02; done`

// family starts a family under the lock.
func (c *cli) family(child, parent string, flags ...string) *call {
	return c.start(append(append([]string{"run"}, flags...), "n", "--", "sh", "-c", family, "sh", child, parent)...)
}

// TestGroupKeepsTheLockWhileItEnds: the end of a shell by TERM must not release the lock while its
// child still cleans up.
func TestGroupKeepsTheLockWhileItEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("until test -e go; do sleep 0.02; done; exit", "exit 4", "--grace", "1m", "--ttl", "3m")
	child, parent := c.pid("child"), c.pid("parent")
	p.signal(syscall.SIGTERM)
	gone(t, parent)
	if holder, live := c.row("n"); holder == "" || !live {
		t.Error("the lock is free while the group ends")
	}
	c.touch("go")
	if r := p.wait(); r.status != 4 || strings.Contains(r.stderr, "pglock:") {
		t.Errorf("got %+v", r)
	}
	gone(t, child)
}

// TestGroupThatDoesNotEndIsNotKilled: without a loss no process is killed.
func TestGroupThatDoesNotEndIsNotKilled(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family(":", "exit 4", "--grace", "100ms")
	child := c.pid("child")
	c.pid("parent")
	if r := p.end(); r.status != 4 || !strings.Contains(r.stderr, "still run, now without the lock") {
		t.Errorf("got %+v", r)
	}
	if !alive(child) {
		t.Error("the child was killed")
	}
}

// TestIgnoredSignalsStayIgnored: nohup before pglock applies to the command too.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.sh(`trap "" HUP; exec pglock run n -- sh -c 'kill -HUP $$; echo up; until test -e go; do sleep 0.02; done'`)
	p.waitForStdout("up")
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGCONT) // CONT has no effect on a running process
	c.touch("go")
	if r := p.wait(); r.status != 0 {
		t.Errorf("got %+v", r)
	}
}
