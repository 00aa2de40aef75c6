//go:build unix

package main

import (
	"strings"
	"testing"
)

// TestAlso: a command runs while several locks are held, all or none.
func TestAlso(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	inside := c.held("b", "--also", "a", "--also", "c")
	for _, name := range []string{"a", "b", "c"} {
		if r := c.expect(75, "run", "--wait", "0", name, "--", "true"); !strings.Contains(r.stderr, "held by") {
			t.Errorf("another host is told %q", r.stderr)
		}
	}
	if r := c.expect(75, "run", "--wait", "0", "--also", "c", "x", "--", "true"); !strings.Contains(r.stderr, `"c": held by`) {
		t.Errorf("another host is told %q", r.stderr)
	}
	c.expect(0, "run", "--wait", "0", "x", "--", "true")
	if r := c.expect(0, "ls"); strings.Count(r.stdout, "\n") < 4 {
		t.Errorf("ls prints %q", r.stdout)
	}
	inside.end()
	if r := c.expect(0, "run", "--also", "a", "b", "--", "sh", "-c", `echo "$PGLOCK_NAME:$PGLOCK_TOKEN"`); !strings.HasPrefix(r.stdout, "a\nb:") {
		t.Errorf("the command gets %q", r.stdout)
	}
	c.expect(64, "run", "--also", "a", "a", "--", "true")
	c.expect(64, "run", "--also", "", "a", "--", "true")
	c.expect(64, "run", "--also", "b", "--permits", "2", "a", "--", "true")
	c.expect(64, "run", "--also", "b", "--once-per", "1h", "a", "--", "true")
	c.expect(64, "run", "--also", "b", "--tick", "1h", "a", "--", "true")
}
