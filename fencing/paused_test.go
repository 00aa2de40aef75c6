//go:build unix

package fencing_test

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// pause halts the process once it has read, as a hypervisor or a debugger would, and sends it the
// line by which it writes when it resumes.
func (h holder) pause() {
	h.t.Helper()
	h.step()
	h.hear("ready")
	ok(h.t, testserver.Suspend(h.cmd.Process.Pid))
	h.step()
}

// resume ends the test unless that is the outcome of the holder's write.
func (h holder) resume(outcome string) {
	h.t.Helper()
	ok(h.t, h.cmd.Process.Signal(syscall.SIGCONT))
	h.hear(outcome)
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
	c := a.user.Config()
	server, err := url.Parse(c.ConnString())
	ok(t, err)
	server.User = url.UserPassword(c.ConnConfig.User, c.ConnConfig.Password)
	a.spec.URL, a.spec.Schema = server.String(), g.schema
	return a
}

// takeOver waits for the lock, reads, writes, and releases.
func (a arena) takeOver(ctx context.Context) error {
	l, err := a.rival.Acquire(ctx, "counter")
	if err != nil {
		return err
	}
	if outcome := a.spec.increment(ctx, a.user, l.Fence(), func() {}); outcome != "wrote" {
		err = errors.New(outcome)
	}
	return errors.Join(err, l.Release(ctx))
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
	for how, outcome := range map[form]string{unfenced: "wrote", column: "refused", guarded: "refused", bound: "refused"} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			a := newArena(t, spec{TTL: 300 * time.Millisecond, Form: how})
			h := startHolder(t, a.spec)
			for range rounds {
				h.pause()
				ok(t, a.takeOver(t.Context()))
				h.resume(outcome)
			}
			writes := value[int](a.fixture, "SELECT count(*) FROM pglock.entries")
			lost := writes - value[int](a.fixture, "SELECT n FROM pglock.counter")
			stale := value[int](a.fixture, "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY at) AS newest FROM pglock.entries) e WHERE token < newest")
			wantLost := 0
			if how == unfenced { // the control must lose
				wantLost = rounds
			}
			if writes != rounds+wantLost || lost != wantLost || stale != wantLost {
				t.Errorf("in %d rounds: %d writes, %d lost, %d stale", rounds, writes, lost, stale)
			}
		})
	}
}

// TestI4_AHolderPausedInsideItsTransaction: the server ends the transaction, the next holder is
// granted the lock within the TTL and a second, and the paused holder resumes with an error. In the
// control, without the idle timeout, the lock stays held for as long as the holder is paused.
func TestI4_AHolderPausedInsideItsTransaction(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	rounds, limit := 2, 10*time.Second // a laden machine, with the race detector
	if long() {
		rounds, limit = 20, ttl+time.Second
	}
	for _, how := range []form{guarded, bound} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			a := newArena(t, spec{TTL: ttl, Form: how, Inside: true})
			for range rounds {
				h := startHolder(t, a.spec)
				h.pause()
				paused := time.Now()
				ok(t, a.takeOver(t.Context()))
				if took := time.Since(paused); took > limit {
					t.Errorf("the lock was taken for %v", took)
				}
				h.resume("paused")
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
		h.pause()
		ctx, cancel := context.WithTimeout(t.Context(), ttl+2*time.Second)
		defer cancel()
		want(t, "control: without the bound the lock was taken over", a.takeOver(ctx), pglock.ErrNotAcquired)
		h.resume("wrote") // no other holder was granted the lock
	})
}
