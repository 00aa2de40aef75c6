//go:build unix

package fencing_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// stop halts the process, as a hypervisor or a debugger would.
func (h *holder) stop() {
	h.t.Helper()
	ok(h.t, testserver.Suspend(h.cmd.Process.Pid))
}

func (h *holder) resume() {
	h.t.Helper()
	ok(h.t, h.cmd.Process.Signal(syscall.SIGCONT))
}

// arena is a schema with a counter, a competing client in this process, and the input of a holder
// in another process.
type arena struct {
	fixture
	user  *pgxpool.Pool
	rival *pglock.Client
	spec  spec
}

func newArena(t *testing.T, s spec) arena {
	t.Helper()
	g := newFixture(t)
	g.sql(counterSQL)
	a := arena{fixture: g, user: pgtest.UserPool(t, g.pool, g.schema), spec: s}
	g.sql("GRANT SELECT, INSERT, UPDATE ON pglock.counter, pglock.entries TO " + schema.Quote(pgtest.RoleOf(a.user)))
	if s.Form == bound {
		g.protect(schema.Quote(g.schema) + ".counter")
	}
	a.rival = locktest.ClientOn(t, a.user, pglock.WithSchema(g.schema))
	a.spec.Schema = g.schema
	c := a.user.Config()
	a.spec.URL, a.spec.Role, a.spec.Password = c.ConnString(), c.ConnConfig.User, c.ConnConfig.Password
	return a
}

// takeOver waits for the lock, reads, writes, and releases.
func (a arena) takeOver(ctx context.Context) error {
	l, err := a.rival.Acquire(ctx, "counter")
	if err != nil {
		return err
	}
	n, err := readCounter(ctx, a.user, a.schema)
	if err == nil {
		err = writeCounter(ctx, a.user, a.spec.Form, l.Fence(), n+1, func(pgx.Tx) error { return nil })
	}
	return errors.Join(err, l.Release(ctx))
}

// tally is the result of an experiment, from the tables and the reports.
type tally struct {
	rounds, writes, lost, stale, refused int
}

// TestI4_ThePausedHolder: a process reads under its lock and is paused (SIGSTOP) before it writes,
// for longer than its lease. Another holder reads and writes, and then the first resumes and
// writes. In the control, without a fence, each round loses an update and accepts a stale write.
func TestI4_ThePausedHolder(t *testing.T) {
	t.Parallel()
	rounds := 6
	if long() {
		rounds = 200
	}
	for _, how := range []form{unfenced, column, guarded, bound} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			a := newArena(t, spec{TTL: 300 * time.Millisecond, Form: how})
			h := startHolder(t, a.spec)
			got := tally{rounds: rounds}
			for range rounds {
				h.tell("begin")
				if r := h.hear(); !r.Ready {
					t.Fatalf("instead of being ready: %+v", r)
				}
				h.stop()
				h.tell("write") // it reads this when it resumes
				ok(t, a.takeOver(t.Context()))
				h.resume()
				if r := h.hear(); r.Refused {
					got.refused++
				}
			}
			n := value[int](a.fixture, "SELECT n FROM pglock.counter")
			got.writes = value[int](a.fixture, "SELECT count(*) FROM pglock.entries")
			got.lost = got.writes - n
			got.stale = value[int](a.fixture, "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY at) AS newest FROM pglock.entries) e WHERE token < newest")
			t.Logf("%s: %+v", how, got)
			want := tally{rounds: rounds, writes: rounds, refused: rounds}
			if how == unfenced { // the control must lose
				want = tally{rounds: rounds, writes: 2 * rounds, lost: rounds, stale: rounds}
			}
			if got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// TestI4_AHolderPausedInsideItsTransaction: the server ends the transaction, the next holder is
// granted the lock within the TTL and a second, and the paused holder resumes with an error. In the
// control, without the idle timeout, the lock stays held for as long as the holder is paused.
func TestI4_AHolderPausedInsideItsTransaction(t *testing.T) {
	t.Parallel()
	rounds := 2
	if long() {
		rounds = 20
	}
	const ttl = 1500 * time.Millisecond
	for _, how := range []form{guarded, bound} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			a := newArena(t, spec{TTL: ttl, Form: how, Inside: true})
			var longest time.Duration
			for range rounds {
				h := startHolder(t, a.spec)
				h.tell("begin")
				h.hear()
				h.stop()
				paused := time.Now()
				h.tell("write")
				ok(t, a.takeOver(t.Context()))
				longest = max(longest, time.Since(paused))
				h.resume()
				if r := h.hear(); r.Wrote || !r.Paused {
					t.Errorf("the holder woke to %+v", r)
				}
			}
			t.Logf("%s: %d rounds, the next one wrote %v after the pause at the latest; TTL %v", how, rounds, longest, ttl)
			bound := 10 * time.Second // a laden machine, with the race detector
			if long() {
				bound = ttl + time.Second
			}
			if longest > bound {
				t.Errorf("the lock was taken for %v", longest)
			}
			if n := value[int](a.fixture, "SELECT n FROM pglock.counter"); n != rounds {
				t.Errorf("%d updates of %d are there", n, rounds)
			}
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		a := newArena(t, spec{TTL: ttl, Form: guarded, Inside: true, Unbounded: true})
		h := startHolder(t, a.spec)
		h.tell("begin")
		h.hear()
		h.stop()
		h.tell("write")
		ctx, cancel := context.WithTimeout(t.Context(), ttl+2*time.Second)
		defer cancel()
		want(t, "control: without the bound the lock was taken over", a.takeOver(ctx), pglock.ErrNotAcquired)
		h.resume()
		if r := h.hear(); !r.Wrote { // no other holder was granted the lock
			t.Errorf("the holder woke to %+v", r)
		}
	})
}

// TestFenceWorksInAnotherProcess that parses its text: a takeover waits for that transaction too.
func TestFenceWorksInAnotherProcess(t *testing.T) {
	t.Parallel()
	a := newArena(t, spec{Form: guarded})
	l, err := a.rival.Acquire(t.Context(), "counter")
	ok(t, err)
	text, err := l.Fence().MarshalText()
	ok(t, err)
	f, err := fencing.ParseFence(string(text))
	if err != nil || f != l.Fence() {
		t.Fatalf("%s: %v, %v", text, f, err)
	}
	tx := a.begin() // another pool, another role
	want(t, "Check", fencing.Check(t.Context(), tx, f), nil)
	if err := l.Release(t.Context()); err != nil { // which does not wait for the transaction
		t.Fatal(err)
	}
	if _, err := a.rival.TryAcquire(t.Context(), "counter"); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("while the fence is held the lock was granted: %v", err)
	}
	ok(t, tx.Commit(t.Context()))
	next, err := a.rival.TryAcquire(t.Context(), "counter")
	ok(t, err)
	want(t, "afterwards", fencing.Check(t.Context(), a.begin(), f), fencing.ErrStale)
	ok(t, next.Release(t.Context()))
}
