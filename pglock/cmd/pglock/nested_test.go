//go:build unix

package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestNestedCommand: a pglock under a lock that it wants itself is refused, at any depth, and would otherwise wait
// for ever. Other locks, and permits that are left, are granted to it.
func TestNestedCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, test := range []struct {
		script string // of a command under the lock a
		status int
		says   string
	}{
		{"pglock run a -- true", statusUsage, `runs under the lock "a" already`},
		{"pglock run b -- pglock run c -- pglock run a -- true", statusUsage, `runs under the lock "a" already`},
		{"pglock run --tick 1h a -- true", statusUsage, `runs under the lock "a" already`},
		{"pglock lead a -- true", statusUsage, `runs under the lock "a" already`},
		{"pglock hold a", statusUsage, `runs under the lock "a" already`},
		{"pglock run --wait 0 --busy-status 7 a -- true", 7, "held by"},
		{"pglock run b -- pglock run --also d c -- echo ran", 0, ""},
		{"pglock run --permits 2 s -- pglock run --permits 2 s -- echo ran", 0, ""},
		{"pglock run --permits 2 s -- pglock run --permits 2 s -- pglock run --permits 2 s -- true", statusUsage, `runs under the lock "s" already`},
		{"pglock run --read r -- pglock run --read r -- echo ran", 0, ""},
		{"pglock run --read r -- pglock run --write r -- true", statusUsage, `runs under the lock "r" already`},
		{"pglock run --write r -- pglock run --read r -- true", statusUsage, `runs under the lock "r" already`},
		{"pglock run b -- pglock run --also d c -- pglock run d -- true", statusUsage, `runs under the lock "d" already`},
		{"pglock run --schema " + schema.ShellWord(newCLI(t).schema) + " a -- echo ran", 0, ""},
	} {
		r := c.expect(test.status, "run", "a", "--", "sh", "-c", test.script)
		if !strings.Contains(r.stderr, test.says) || (r.stdout == "ran\n") != (test.status == 0) {
			t.Errorf("%s: got %+v", test.script, r)
		}
	}
}

// TestNestedCommandsThatCross: b inside a, and a inside b, end with a deadlock for one of them. In the control
// nothing crosses.
func TestNestedCommandsThatCross(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]string{"crossing": "a", "control": "c"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			nested := func(inner string) string {
				return "echo ready; while [ ! -e go ]; do sleep 0.05; done; exec pglock run between-" + inner + " -- pglock run " + inner + " -- true"
			}
			one, two := c.start("run", "a", "--", "sh", "-c", nested("b")), c.start("run", "b", "--", "sh", "-c", nested(inner))
			one.waitForStdout("ready")
			two.waitForStdout("ready")
			c.touch("go")
			first, second := one.wait(), two.wait()
			found := strings.Count(first.stderr+second.stderr, "deadlock")
			if inner == "c" && (first.status != 0 || second.status != 0 || found != 0) {
				t.Errorf("got %+v, %+v", first, second)
			}
			if inner == "a" && (first.status+second.status != statusNotAcquired || found != 1) {
				t.Errorf("got %+v, %+v", first, second)
			}
		})
	}
}

// TestOldEnvironment: what the environment says of grants counts only if the server has them, of that holder.
func TestOldEnvironment(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	old := strings.TrimSuffix(c.expect(0, "run", "n", "--", "sh", "-c", `echo "$PGLOCK_HELD"`).stdout, "\n")
	for name, held := range map[string]string{"none": "", "of another program": "yes", "invalid": `[{"schema": ` + strconv.Quote(c.schema) + `, "names": [""], "token": 1}]`, "ended": old} {
		c.set("PGLOCK_HELD", held)
		if r := c.expect(0, "run", "n", "--", "echo", "ran"); r.stdout != "ran\n" {
			t.Errorf("%s: got %+v", name, r)
		}
	}
	c.set("PGLOCK_HELD", "")
	holder := c.start("run", "--holder", "me", "n", "--", "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done")
	holder.waitForStdout("ready")
	token := locktest.Scan[fencing.Token](t, c.pool, "SELECT token FROM "+c.table()+" WHERE name = 'n'")
	var waiting []*call
	for _, h := range []heldLease{{c.schema, []string{"n"}, token, "me"}, {c.schema, []string{"n"}, token, "another"}, {"other", []string{"n"}, token, "me"}} {
		held, err := json.Marshal([]heldLease{h})
		locktest.OK(t, err)
		c.set("PGLOCK_HELD", string(held))
		p := c.start("run", "n", "--", "true")
		if h.Schema == c.schema && h.Holder == "me" {
			if r := p.wait(); r.status != statusUsage {
				t.Errorf("%+v: got %+v", h, r)
			}
			continue
		}
		p.waitForStderr("waiting: ") // the grant is another one, as in another database
		waiting = append(waiting, p)
	}
	c.touch("go")
	for _, p := range append(waiting, holder) {
		if r := p.wait(); r.status != 0 {
			t.Errorf("%q: got %+v", p.cmd.Args, r)
		}
	}
}
