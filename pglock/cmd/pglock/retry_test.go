//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestRetry: a command that fails is repeated, by a host that waits if there is one, as often as --retry says. Then
// the run counts. In the control, without the flag, it does not count, and is not repeated.
func TestRetry(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	flags := []string{"run", "--retry", "2", "--backoff", "10ms", "--tick", longTick}
	count := func(name, then string) []string {
		return []string{name, "--", "sh", "-c", "echo ran; echo x >> " + name + "; " + then}
	}
	r := c.expect(0, append(flags, count("late", "[ $(wc -l < late) -gt 2 ]")...)...)
	if r.stdout != "ran\nran\nran\n" || strings.Count(r.stderr, "the command failed, and is repeated: exit status 1") != 2 {
		t.Errorf("it succeeds at last: got %+v", r)
	}
	r = c.expect(3, append(flags, count("never", "exit 3")...)...)
	if strings.Count(r.stdout, "ran") != 3 {
		t.Errorf("it fails too often: got %+v", r)
	}
	if r = c.expect(0, append(flags, count("never", "exit 3")...)...); r.stdout != "" || !strings.Contains(r.stderr, "was already run") {
		t.Errorf("and counts: got %+v", r)
	}
	for range 2 {
		if r = c.expect(3, "run", "--tick", longTick, "control", "--", "sh", "-c", "echo ran; exit 3"); r.stdout != "ran\n" {
			t.Errorf("control: got %+v", r)
		}
	}
	view := pgx.Identifier{c.schema, "schedules"}.Sanitize()
	if text := locktest.Scan[string](t, c.pool, "SELECT attempts || ' ' || error FROM "+view+" WHERE job = 'never' AND failed_tick = last_tick"); !strings.HasPrefix(text, "3 exit status 3 on ") {
		t.Errorf("the view has %q", text)
	}
	// Another host waits.
	first := c.start(append(flags, "two", "--", "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 3")...)
	first.waitForStdout("ready")
	second := c.start(append(flags, "two", "--", "sh", "-c", "echo ran")...)
	second.waitForStderr("waiting: ")
	c.touch("go")
	if r := second.wait(); r.status != 0 || r.stdout != "ran\n" {
		t.Errorf("the host that waits: got %+v", r)
	}
	if r := first.wait(); r.status != 0 || !strings.Contains(r.stderr, "nothing to do") {
		t.Errorf("the host that failed: got %+v", r)
	}
}

// TestRetryStops: a signal to the command, or during the pause, ends pglock, and another host may run the tick.
func TestRetryStops(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	flags := []string{"run", "--retry", "2", "--backoff", "1h", "--tick", longTick}
	p := c.start(append(flags, "n", "--", "sh", "-c", "echo ready; exec sleep 1000")...)
	p.waitForStdout("ready")
	if r := p.end(); r.status != 128+int(syscall.SIGTERM) || strings.Contains(r.stderr, "repeated") {
		t.Errorf("a signal to the command: got %+v", r)
	}
	p = c.start(append(flags, "n", "--", "sh", "-c", "exit 3")...)
	pgtest.Eventually(t, "it pauses under the lock", func() bool {
		return locktest.Scan[int](t, c.pool, "SELECT count(*) FROM "+c.table()+" AS l, "+pgx.Identifier{c.schema, "scheduled_jobs"}.Sanitize()+
			" AS j WHERE l.name = 'n' AND l.holder IS NOT NULL AND j.attempts = 1") == 1
	})
	if r := p.end(); r.status != 128+int(syscall.SIGTERM) {
		t.Errorf("a signal in the pause: got %+v", r)
	}
	if r := c.expect(0, "run", "--tick", longTick, "n", "--", "echo", "ran"); r.stdout != "ran\n" {
		t.Errorf("another host: got %+v", r)
	}
	if r := c.expect(statusUsage, "run", "--retry", "101", "--tick", "1h", "n", "--", "true"); !strings.Contains(r.stderr, "must be 1 to 100") {
		t.Errorf("too many: got %+v", r)
	}
	if r := c.expect(statusUsage, "run", "--retry", "1", "--backoff", "1h", "--tick", "1h", "n", "--", "true"); !strings.Contains(r.stderr, "must be less, so that a failed run is repeated before the next tick") {
		t.Errorf("too late: got %+v", r)
	}
}
