//go:build unix

package main

import (
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// TestTextOfOthersIsSafe: no command prints characters of another holder that a terminal obeys or
// hides: its name, its labels, its payload, or the reason of a release.
func TestTextOfOthersIsSafe(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := locktest.ClientOn(t, c.pool, pglock.WithSchema(c.schema), pglock.WithHolder(evil))
	e, err := leader.New(client, "led")
	locktest.OK(t, err)
	if _, err := e.Campaign(t.Context(), evil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n", evil} {
		if _, err := client.TryAcquire(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Semaphore("s", 1).TryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "--wait", "0", "n", "--", "true"},
		{"run", "--wait", "10ms", "n", "--", "true"},
		{"run", "--wait", "0", "--also", "free", "n", "--", "true"},
		{"run", "--wait", "10ms", "--also", evil, "free", "--", "true"},
		{"run", "--wait", "0", "--permits", "1", "s", "--", "true"},
		{"run", "--wait", "0", "--once-per", "1h", "n", "--", "true"},
		{"run", "--wait", "0", evil, "--", "true"},
		{"ls"},
		{"ls", "--json"},
		{"show", "s"},
		{"show", "led"},
		{"show", "--json", "led"},
		{"release", "--force", "--reason", evil, "n"},
		{"release", "--force", "--reason", evil, evil},
		{"show", "n"},
		{"migrate", "version", "--schema", evil},
	} {
		if r := c.run(args...); !printable(r.stdout) || !printable(r.stderr) || r.stdout+r.stderr == "" {
			t.Errorf("pglock %q prints %q and %q", args, r.stdout, r.stderr)
		}
	}
	p := c.start("lead", "led", "--", "true")
	p.waitForStderr("is led by")
	held := c.start("run", "--label", "a="+evil, "victim", "--", "sh", "-c", "echo up; exec sleep 60")
	held.waitForStdout("up")
	c.expect(0, "release", "--force", "--reason", evil, "victim")
	held.waitForStderr("lost the lock")
	held.wait()
	for _, p := range []*call{p, held} {
		if text := read(t, p.stderr.Name()); !printable(text) {
			t.Errorf("pglock %q prints %q", p.cmd.Args, text)
		}
	}
}
