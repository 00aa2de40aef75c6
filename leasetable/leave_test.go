package leasetable_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/leasetable"
)

// impatient is the context of a caller who leaves soon, long before a statement's own bound of 5 s.
func impatient(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 100*time.Millisecond)
}

// halt halts the server and returns what lets it go on. The test's end does so too.
func halt(t *testing.T, server *testserver.Server) (resume func()) {
	t.Helper()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() {
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// soon fails the test if a call took longer than a caller who leaves may be kept.
func soon(t *testing.T, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: the caller, whose context ended after 100ms, was kept for %v", what, took)
	}
}

// settled closes the client and waits until the server is through with all that it was sent.
func (f fixture) settled(c *leasetable.Client) {
	f.t.Helper()
	if err := c.Close(f.t.Context()); err != nil {
		f.t.Errorf("Close: %v", err)
	}
	pgtest.Eventually(f.t, 20*time.Second, "the client's connections end", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%'") == 0
	})
}

// TestI9_ALoneCallerLeaves: while the server is halted, who sends its statement itself leaves when its
// context ends, and what it is granted when the server goes on is given back.
func TestI9_ALoneCallerLeaves(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*leasetable.Client, context.Context, string, ...leasetable.LeaseOption) (*leasetable.Lease, error){
		"TryAcquire": (*leasetable.Client).TryAcquire,
		"Acquire":    (*leasetable.Client).Acquire,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			version := func() int { return value[int](f, "SELECT version FROM pglock.distributed_locks") }
			const rounds = 4
			granted := 0
			for range rounds {
				c := f.openUnclosed(leasetable.WithTTL(time.Hour))
				release(t, try(t, c, "n")) // its row is there, and the statements are prepared
				before := version()
				resume := halt(t, server)
				ctx, cancel := impatient(t)
				began := time.Now()
				_, err := ask(c, ctx, "n")
				soon(t, name, began)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, leasetable.ErrNotAcquired) {
					t.Errorf("told %v", err)
				}
				resume()
				f.settled(c)
				if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
					t.Fatal("the lock is held for an hour by nobody")
				}
				if version() > before { // the request was there before the cancellation
					granted++
				}
			}
			t.Logf("%d of %d requests were granted after their callers had left", granted, rounds)
		})
	}
}

// TestI9_ALoneReleaserLeaves: the release goes on without its caller, and is done as soon as the server goes on.
func TestI9_ALoneReleaserLeaves(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed(leasetable.WithTTL(time.Hour))
	release(t, try(t, c, "n"))
	l := try(t, c, "n")
	resume := halt(t, server)
	ctx, cancel := impatient(t)
	defer cancel()
	began := time.Now()
	err := l.Release(ctx)
	soon(t, "Release", began)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still under way") {
		t.Errorf("told %v", err)
	}
	within(t, time.Second, "the lease's own context is done", l.Done())
	resume()
	pgtest.Eventually(t, 20*time.Second, "the lock is free", func() bool {
		return value[bool](f, "SELECT holder IS NULL FROM pglock.distributed_locks")
	})
	release(t, l) // it has been
	f.settled(c)
}

// TestCloseEndsALoneCallersCall: with Close's context, also the statement ends that a caller has sent itself.
func TestCloseEndsALoneCallersCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *leasetable.Client, *leasetable.Lease) error{
		"TryAcquire": func(ctx context.Context, c *leasetable.Client, _ *leasetable.Lease) error {
			return second(c.TryAcquire(ctx, "free"))
		},
		"Acquire": func(ctx context.Context, c *leasetable.Client, _ *leasetable.Lease) error {
			return second(c.Acquire(ctx, "free"))
		},
		"Release": func(ctx context.Context, _ *leasetable.Client, l *leasetable.Lease) error { return l.Release(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			c := f.openUnclosed(leasetable.WithTTL(time.Hour))
			release(t, try(t, c, "free"))
			l := try(t, c, "held")
			resume := halt(t, server)
			told := make(chan error, 1)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				told <- call(t.Context(), c, l)
			}()
			rest(t, 200*time.Millisecond) // it is under way
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			closed := make(chan struct{})
			go func() { defer close(closed); _ = c.Close(ctx) }()
			within(t, 2*time.Second, "Close", closed)
			within(t, 2*time.Second, name, ended) // whose statement has 5 s
			if err := <-told; !errors.Is(err, leasetable.ErrClosed) {
				t.Errorf("told %v", err)
			}
			resume()
		})
	}
}
