//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSignalsArePassedOn sends each to pglock and has the command log it.
func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "n", "--", "sh", "-c", `
		for s in HUP INT QUIT USR1 USR2; do trap "echo $s" $s; done
		trap "echo TERM; exit 9" TERM
		echo up
		while :; do sleep 0.02; done`)
	p.prints("up")
	for _, test := range []struct {
		sig  syscall.Signal
		name string
	}{
		{syscall.SIGHUP, "HUP"}, {syscall.SIGINT, "INT"}, {syscall.SIGQUIT, "QUIT"},
		{syscall.SIGUSR1, "USR1"}, {syscall.SIGUSR2, "USR2"}, {syscall.SIGTERM, "TERM"},
	} {
		p.signal(test.sig)
		p.prints("\n" + test.name + "\n")
	}
	if r := p.wait(); r.status != 9 || strings.Contains(r.stderr, "pglock:") {
		t.Errorf("got %+v", r)
	}
	if holder, _ := c.row("n"); holder != "" {
		t.Errorf("the lock is still held by %s", holder)
	}
}

// family is a command with a child of its own, which take note of TERM. The first
// argument is what the child does then, the second what the parent does.
const family = `
	sh -c 'trap "echo child >> log; '"$1"'" TERM; echo $$ > child; while :; do sleep 0.02; done' &
	trap 'echo parent >> log; '"$2" TERM
	until test -s child; do sleep 0.02; done
	echo $$ > parent
	while :; do sleep 0.02; done`

// family starts one under the lock.
func (c *cli) family(child, parent string, flags ...string) *call {
	return c.start(append(append([]string{"run"}, flags...), "n", "--", "sh", "-c", family, "sh", child, parent)...)
}

func TestSignalsReachTheGroup(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("exit", "exit 4")
	child, parent := c.pid("child"), c.pid("parent")
	p.signal(syscall.SIGTERM)
	if r := p.wait(); r.status != 4 {
		t.Errorf("got %+v", r)
	}
	gone(t, child)
	gone(t, parent)
	log := read(t, filepath.Join(c.dir, "log"))
	if !strings.Contains(log, "child\n") || !strings.Contains(log, "parent\n") {
		t.Errorf("TERM reached only: %s", log)
	}
}

// TestGroupKeepsTheLockWhileItEnds: a shell that dies of TERM at once must not
// free the lock while its child still cleans up.
func TestGroupKeepsTheLockWhileItEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family("until test -e go; do sleep 0.02; done; exit", "exit 4", "--grace", "1m", "--ttl", "5s")
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

// TestGroupThatDoesNotEndIsLeft: without a loss nobody is killed.
func TestGroupThatDoesNotEndIsLeft(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.family(":", "exit 4", "--grace", "100ms")
	child := c.pid("child")
	c.pid("parent")
	p.signal(syscall.SIGTERM)
	if r := p.wait(); r.status != 4 || !strings.Contains(r.stderr, "still run, now without the lock") {
		t.Errorf("got %+v", r)
	}
	if !alive(child) {
		t.Error("the child was killed")
	}
}

// TestIgnoredSignalsStayIgnored: nohup, before pglock.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.startWith(func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec pglock run n -- sh -c 'echo up; until test -e go; do sleep 0.02; done'`}
	})
	p.prints("up")
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGCONT) // it does no harm
	c.touch("go")
	if r := p.wait(); r.status != 0 {
		t.Errorf("got %+v", r)
	}
}
