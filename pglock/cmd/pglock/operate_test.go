//go:build unix

package main

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// TestShowNamesAdvisoryLocks: DoTx takes no lease, so show says which session has its lock.
func TestShowNamesAdvisoryLocks(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := locktest.ClientOn(t, c.pool, pglock.WithSchema(c.schema))
	locktest.OK(t, client.DoTx(t.Context(), "tx", func(context.Context, pgx.Tx) error {
		if r := c.expect(0, "show", "tx"); !strings.Contains(r.stdout, "advisory lock  held by process ") {
			t.Errorf("%s", r.stdout)
		}
		return nil
	}))
	c.expect(1, "show", "tx")
}

// TestHoldUntilInterrupted: hold prints the fence, and releases the lock on a signal.
func TestHoldUntilInterrupted(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("hold", "--label", "why=maintenance", "n")
	pgtest.Eventually(t, "it holds", func() bool { holder, live := c.row("n"); return holder != "" && live })
	c.expect(statusNotAcquired, "hold", "--wait", "0", "n")
	locktest.OK(t, p.cmd.Process.Signal(syscall.SIGINT))
	if r := p.wait(); r.status != 0 || !strings.HasPrefix(r.stdout, "n@") {
		t.Errorf("%+v", r)
	}
	if holder, _ := c.row("n"); holder != "" {
		t.Errorf("still held by %s", holder)
	}
	p = c.start("hold", "n")
	pgtest.Eventually(t, "it holds", func() bool { holder, live := c.row("n"); return holder != "" && live })
	c.expect(0, "release", "n", "--force", "--reason", "a test")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "revoked") {
		t.Errorf("%+v", r)
	}
}

// TestWatch prints the changes.
func TestWatchPrintsChanges(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	w := c.start("watch", "n")
	h := c.held("n")
	sees := func(text string) {
		t.Helper()
		pgtest.Eventually(t, text, func() bool { return strings.Contains(read(t, w.stdout.Name()), text) })
	}
	sees("held by ")
	locktest.OK(t, h.cmd.Process.Signal(syscall.SIGTERM))
	sees("free, after ")
	locktest.OK(t, w.cmd.Process.Signal(syscall.SIGINT))
	w.wait()
}

// TestNamesAreCompleted for the shell, and nothing else.
func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("account:17")
	c.held("account 18")
	for args, want := range map[string]string{"show acc": "account:17\n", "release acc": "account:17\n", "show x": "", "run acc": "account:17\n"} {
		if got, _, _ := strings.Cut(c.run(append([]string{"__complete"}, strings.Fields(args)...)...).stdout, ":4"); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// TestOnceCommand lists, shows and resolves keys.
func TestOnceCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := locktest.ClientOn(t, c.pool, pglock.WithSchema(c.schema))
	do := func(key string) error {
		_, err := once.Do(t.Context(), client, key, nil, func(context.Context, *pglock.Lease) (int, error) { return 0, context.Canceled })
		return err
	}
	_, _ = do("charge:1"), do("charge:2")
	if r := c.expect(0, "once", "ls"); strings.Count(r.stdout, " unknown ") != 2 {
		t.Errorf("%s", r.stdout)
	}
	if r := c.expect(0, "once", "show", "charge:1"); !strings.Contains(r.stdout, "state          unknown") {
		t.Errorf("%s", r.stdout)
	}
	c.expect(statusUsage, "once", "resolve", "charge:1")
	c.expect(statusUsage, "once", "resolve", "charge:1", "--happened", "--did-not-happen")
	c.expect(statusNoGrant, "once", "resolve", "charge:1", "--happened", "--token", "4611686018427387903")
	c.expect(statusNoGrant, "once", "resolve", "charge:9", "--happened")
	c.expect(0, "once", "resolve", "charge:1", "--happened")
	c.expect(0, "once", "resolve", "charge:2", "--did-not-happen")
	if r := c.expect(0, "once", "ls"); strings.Contains(r.stdout, "charge") {
		t.Errorf("%s", r.stdout)
	}
	if r := c.expect(0, "once", "show", "charge:1"); !strings.Contains(r.stdout, "done") {
		t.Errorf("%s", r.stdout)
	}
	c.expect(statusNoGrant, "once", "show", "charge:2")
}

// TestAsk: the holder is told the reason, and ends if it obeys.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"run":  {"run", "--ttl", "2s", "n", "--", "sh", "-c", "trap 'echo stops; exit 3' TERM; echo up; while :; do sleep 0.1; done"},
		"lead": {"lead", "--ttl", "2s", "n", "--", "sh", "-c", "trap 'echo stops; exit 3' TERM; echo up; while :; do sleep 0.1; done"},
		"hold": {"hold", "--ttl", "2s", "n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.expect(statusNoGrant, "ask", "n", "--reason", "a deploy")
			p := c.start(args...)
			pgtest.Eventually(t, "it holds", func() bool { holder, live := c.row("n"); return holder != "" && live })
			if r := c.expect(0, "ask", "n", "--reason", "a deploy"); !strings.HasPrefix(r.stdout, `asked for grant `) {
				t.Errorf("%+v", r)
			}
			p.waitForStderr(`asked to release the lock "n" (token `)
			if holder, live := c.row("n"); holder == "" || !live {
				t.Error("it has obeyed")
			}
			c.expect(0, "release", "n", "--force", "--reason", "a test")
			p.end()

			p = c.start(append([]string{args[0], "--stop-when-asked"}, args[1:]...)...)
			pgtest.Eventually(t, "it holds", func() bool { holder, live := c.row("n"); return holder != "" && live })
			if name != "hold" {
				p.waitForStdout("up")
			}
			c.expect(0, "ask", "n", "--reason", "a deploy")
			want := 3
			if name == "hold" {
				want = 0
			}
			if r := p.wait(); r.status != want || !strings.Contains(r.stderr, `"a deploy (by `) || name != "hold" && !strings.Contains(r.stdout, "stops") {
				t.Errorf("%+v", r)
			}
			if holder, _ := c.row("n"); holder != "" {
				t.Errorf("still held by %s", holder)
			}
		})
	}
}

// TestASidecarStepsDown: without a command, a leader that obeys resigns and is a candidate again.
func TestASidecarStepsDown(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("lead", "--stop-when-asked", "--http", "127.0.0.1:0", "n")
	pgtest.Eventually(t, "it leads", func() bool { holder, live := c.row("n"); return holder != "" && live })
	c.expect(0, "ask", "n", "--reason", "a deploy")
	p.waitForStderr(`"a deploy (by `)
	pgtest.Eventually(t, "it leads again", func() bool {
		holder, live := c.row("n")
		return holder != "" && live && !strings.Contains(c.run("show", "n").stdout, "\nasked")
	})
	if r := p.end(); r.status != 0 {
		t.Errorf("%+v", r)
	}
}

// TestFromAHolderToItsSession, and to what operators did: show has both, also of a holder with a name of its own.
func TestFromAHolderToItsSession(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for name, flags := range map[string][]string{"n": nil, "m": {"--holder", "api-1"}} {
		c.held(name, flags...)
		c.expect(0, "ask", name, "--reason", "a deploy")
		pgtest.Eventually(t, "show has the action and a session of the holder", func() bool { // a session that idles may have ended since
			shown := c.expect(0, "show", name).stdout
			session := regexp.MustCompile(`(?m)^session +process (\d+) of .*, from .*, (idle|active)$`).FindStringSubmatch(shown)
			if session == nil || !regexp.MustCompile(`(?m)^action +20.*Z: asked to release `+name+` \(token \d+\), by .*: a deploy \(by .+@.+\)$`).MatchString(shown) {
				return false
			}
			application := locktest.Scan[string](t, c.pool, "SELECT coalesce((SELECT application_name FROM pg_stat_activity WHERE pid = $1::int), '')", session[1])
			holder, _ := c.row(name)
			return schema.SessionOf(application, holder)
		})
	}
}

// TestRunNow: the next process that serves the job runs it once more.
func TestRunNow(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if r := c.expect(statusNoGrant, "schedule", "run", "job"); !strings.Contains(r.stderr, "no process has served the job") {
		t.Errorf("an unknown job: got %+v", r)
	}
	run := []string{"run", "--tick", longTick, "job", "--", "sh", "-c", "echo \"$PGLOCK_TICK\""}
	first := c.expect(0, run...).stdout
	if r := c.expect(0, run...); r.stdout != "" {
		t.Errorf("before: got %+v", r)
	}
	if r := c.expect(0, "schedule", "run", "job"); !strings.HasPrefix(r.stdout, "triggered job job: its extra tick is 20") {
		t.Errorf("got %+v", r)
	}
	if r := c.expect(0, "top", "--once", "--screen", "schedules"); !strings.Contains(r.stdout, "triggered") {
		t.Errorf("while it is pending: got %+v", r)
	}
	if extra := c.expect(0, run...).stdout; len(extra) < 20 || extra <= first {
		t.Errorf("the extra tick is %q, after %q", extra, first)
	}
	if r := c.expect(0, run...); r.stdout != "" || !strings.Contains(r.stderr, "was already run") {
		t.Errorf("after it: got %+v", r)
	}
	p := c.start("run", "--tick", "1ms", "job", "--", "sh", "-c", "echo ready; exec sleep 1000")
	p.waitForStdout("ready")
	if r := c.expect(statusNotAcquired, "schedule", "run", "job"); !strings.Contains(r.stderr, "the job is being run") {
		t.Errorf("while it runs: got %+v", r)
	}
	p.end()
}

// TestNewestRunWins: it ends the run that waits, and asks the one that holds the lock to stop.
func TestNewestRunWins(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	run := func(text string) *call {
		return c.start("run", "--supersede", "--holder", text, "n", "--", "sh", "-c",
			"trap 'until [ -e stop ]; do sleep 0.1; done; echo "+text+" stops; exit 3' TERM; echo "+text+" runs; while :; do sleep 0.1; done")
	}
	waits := func(holder string) {
		t.Helper()
		pgtest.Eventually(t, holder+" waits", func() bool {
			return locktest.Scan[int](t, c.pool, schema.Render("SELECT count(*) FROM pglock.locks_waiting WHERE client = $1", c.schema), holder) == 1
		})
	}
	first := run("first")
	first.waitForStdout("first runs")
	second := run("second")
	waits("second")
	first.waitForStderr(`"superseded by second"`)
	third := run("third")
	if r := second.wait(); r.status != statusSuperseded || r.stdout != "" || !strings.Contains(r.stderr, "superseded by a newer call") {
		t.Errorf("%+v", r)
	}
	waits("third")
	c.touch("stop")
	if r := first.wait(); r.status != 3 {
		t.Errorf("%+v", r)
	}
	third.waitForStdout("third runs")
	if r := third.end(); r.status != 3 {
		t.Errorf("%+v", r)
	}
	for _, flags := range [][]string{{"--permits", "2"}, {"--also", "m"}, {"--tick", "1h"}} {
		r := c.expect(statusUsage, append(append([]string{"run", "--supersede"}, flags...), "n", "--", "true")...)
		if !strings.Contains(r.stderr, "must be one of them") {
			t.Errorf("%+v", r)
		}
	}
}
