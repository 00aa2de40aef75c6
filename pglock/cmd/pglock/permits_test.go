//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/pglock/inspect"
)

// TestPermits: two hosts hold a semaphore of two, a third one does not get in.
func TestPermits(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	inside := []*call{c.held("s", "--permits", "2"), c.held("s", "--permits", "2")}
	if r := c.expect(75, "run", "--wait", "0", "--permits", "2", "s", "--", "true"); !strings.Contains(r.stderr, "held by") {
		t.Errorf("the third host is told %q", r.stderr)
	}
	if r := c.expect(0, "ls"); strings.Count(r.stdout, " shared ") != 2 {
		t.Errorf("ls:\n%s", r.stdout)
	}
	if r := c.expect(0, "show", "s"); !strings.Contains(r.stdout, "2 of 2 in use") || strings.Count(r.stdout, "\ngrant ") != 2 || strings.Count(r.stdout, ", 1 permit, ") != 2 ||
		!strings.Contains(r.stdout, "\nkind     semaphore\n") || strings.Contains(r.stdout, "\nsince ") || strings.Contains(r.stdout, "\nremaining ") || strings.Contains(r.stdout, "\ntoken ") {
		t.Errorf("show:\n%s", r.stdout)
	}
	var k lockJSON
	if r := c.expect(0, "ls", "--json"); json.Unmarshal([]byte(r.stdout), &k) != nil || k.Kind != inspect.Semaphore || k.Permits != 2 || k.InUse != 2 || len(k.Grants) != 2 || k.Since != nil {
		t.Fatalf("ls --json: %s", r.stdout)
	}
	if r := c.expect(statusUsage, "release", "s", "--force", "--reason", "a test"); !strings.Contains(r.stderr, "--token") {
		t.Errorf("release without a token: %q", r.stderr)
	}
	if r := c.expect(0, "release", "s", "--force", "--reason", "a test", "--token", fmt.Sprint(k.Grants[0].Token)); !strings.Contains(r.stdout, k.Grants[0].Holder) {
		t.Errorf("release: %q", r.stdout)
	}
	c.expect(statusNoGrant, "release", "s", "--force", "--reason", "a test", "--token", "999999")
	c.expect(0, "run", "--wait", "0", "--permits", "2", "s", "--", "true") // there is room for one more
	for _, p := range inside {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // the one without a grant may have ended
		p.wait()
	}
	c.expect(0, "run", "--wait", "0", "--permits", "2", "s", "--", "true")
	if r := c.expect(64, "run", "--wait", "0", "--permits", "3", "s", "--", "true"); !strings.Contains(r.stderr, "semaphore with 2 permits") {
		t.Errorf("another number of permits: %q", r.stderr)
	}
	c.expect(64, "run", "--permits", "0", "s", "--", "true")
	c.expect(64, "run", "--wait", "0", "s", "--", "true")
	c.expect(64, "run", "--permits", "2", "--once-per", "1h", "t", "--", "true")
}

// TestWeight: a command that needs more permits than are left does not run.
func TestWeight(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	inside := c.held("s", "--permits", "3", "--weight", "2")
	c.expect(75, "run", "--wait", "0", "--permits", "3", "--weight", "2", "s", "--", "true")
	c.expect(0, "run", "--wait", "0", "--permits", "3", "s", "--", "true")
	inside.end()
	c.expect(0, "run", "--wait", "0", "--permits", "3", "--weight", "3", "s", "--", "true")
	for _, weight := range []string{"0", "-1", "4"} {
		c.expect(64, "run", "--permits", "3", "--weight", weight, "s", "--", "true")
	}
	c.expect(64, "run", "--weight", "2", "s", "--", "true")
}

// TestReadersAndWriter: readers hold the lock together, a writer alone.
func TestReadersAndWriter(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	readers := []*call{c.held("rw", "--read"), c.held("rw", "--read")}
	if r := c.expect(75, "run", "--wait", "0", "--write", "rw", "--", "true"); !strings.Contains(r.stderr, "held by") {
		t.Errorf("the writer is told %q", r.stderr)
	}
	for _, p := range readers {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it ends
		p.wait()
	}
	writer := c.held("rw", "--write")
	c.expect(75, "run", "--wait", "0", "--read", "rw", "--", "true")
	c.expect(75, "run", "--wait", "0", "--write", "rw", "--", "true")
	writer.end()
	c.expect(0, "run", "--wait", "0", "--read", "rw", "--", "true")
	c.expect(64, "run", "--wait", "0", "rw", "--", "true") // another kind of lock
	for _, other := range [][]string{{"--write"}, {"--permits", "2"}, {"--also", "n"}, {"--once-per", "1h"}} {
		if r := c.expect(64, append(append([]string{"run", "--read"}, other...), "rw", "--", "true")...); !strings.Contains(r.stderr, "exclude each other") {
			t.Errorf("--read and %v: %q", other, r.stderr)
		}
	}
}
