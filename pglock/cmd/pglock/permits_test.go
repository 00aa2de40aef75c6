//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// TestPermits: two hosts hold a semaphore of two, a third one does not get in.
func TestPermits(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	inside := []*call{c.held("s", "--permits", "2"), c.held("s", "--permits", "2")}
	if r := c.expect(75, "run", "--wait", "0", "--permits", "2", "s", "--", "true"); !strings.Contains(r.stderr, "held by") {
		t.Errorf("the third host is told %q", r.stderr)
	}
	for _, p := range inside {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
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
