package main

import (
	"testing"
)

// TestKilledPglockTakesItsCommandAlong: and the lock is free after the TTL, no sooner.
func TestKilledPglockTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "--holder", "victim", "--ttl", "10s", "n", "--", "sh", "-c", `trap "" TERM HUP; echo $$ > pid; while :; do sleep 0.02; done`)
	pid := c.pid("pid")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	if holder, live := c.row("n"); holder != "victim" || !live {
		t.Errorf("right after the kill %q holds the lock, live: %v", holder, live)
	}
	c.expect(statusNotAcquired, "run", "--wait", "0", "n", "--", "true")
	c.expect(0, "run", "--wait", "30s", "n", "--", "true")
}
