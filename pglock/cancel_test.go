package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// impatient returns the context of a caller that leaves soon, long before a statement's bound of 5
// s.
func impatient(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 100*time.Millisecond)
}

// halt halts the server and returns a function that resumes it, as does the end of the test.
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

// soon fails the test if a call took too long after its caller left.
func soon(t *testing.T, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: the caller, who had 100ms, was kept for %v", what, took)
	}
}

// settled closes the client and waits until the server has finished all its statements.
func (f fixture) settled(c *pglock.Client) {
	f.t.Helper()
	if err := c.Close(f.t.Context()); err != nil {
		f.t.Errorf("Close: %v", err)
	}
	pgtest.Eventually(f.t, 20*time.Second, "the client's connections end", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%'") == 0
	})
}

// TestI9_ALoneCallerLeaves: while the server is halted, a caller that sends its own statement
// leaves when its context ends. Its grant is revoked when the server resumes.
func TestI9_ALoneCallerLeaves(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(*pglock.Client, context.Context, string, ...pglock.LeaseOption) (*pglock.Lease, error){
		"TryAcquire": (*pglock.Client).TryAcquire,
		"Acquire":    (*pglock.Client).Acquire,
		"WithWait": func(c *pglock.Client, ctx context.Context, name string, opts ...pglock.LeaseOption) (*pglock.Lease, error) {
			return c.Acquire(context.WithoutCancel(ctx), name, append(opts, pglock.WithWait(100*time.Millisecond))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			version := func() int { return value[int](f, "SELECT version FROM pglock.distributed_locks") }
			const rounds = 4
			granted := 0
			for range rounds {
				c := f.openUnclosed(pglock.WithTTL(time.Hour))
				release(t, try(t, c, "n")) // its row exists, and the statements are prepared
				before := version()
				resume := halt(t, server)
				ctx, cancel := impatient(t)
				began := time.Now()
				_, err := acquire(c, ctx, "n")
				soon(t, name, began)
				cancel()
				want := context.DeadlineExceeded
				if name == "WithWait" {
					want = pglock.ErrTimeout
				}
				if !errors.Is(err, want) || !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("told %v", err)
				}
				resume()
				f.settled(c)
				if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
					t.Fatal("the lock is held for an hour by nobody")
				}
				if version() > before { // the request arrived before the cancellation
					granted++
				}
			}
			t.Logf("%d of %d requests were granted after their callers had left", granted, rounds)
		})
	}
}

// TestI9_ALoneReleaserLeaves: the release continues without its caller, and ends when the server
// resumes.
func TestI9_ALoneReleaserLeaves(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed(pglock.WithTTL(time.Hour))
	release(t, try(t, c, "n"))
	l := try(t, c, "n")
	resume := halt(t, server)
	ctx, cancel := impatient(t)
	defer cancel()
	began := time.Now()
	err := l.Release(ctx)
	soon(t, "Release", began)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done yet") {
		t.Errorf("told %v", err)
	}
	within(t, time.Second, "the lease's own context is done", l.Done())
	resume()
	pgtest.Eventually(t, 20*time.Second, "the lock is free", func() bool {
		return value[bool](f, "SELECT holder IS NULL FROM pglock.distributed_locks")
	})
	release(t, l) // it has been released
	f.settled(c)
}

// TestCloseEndsALoneCallersCall: the end of Close's context ends a statement that a caller has
// sent.
func TestCloseEndsALoneCallersCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *pglock.Client, *pglock.Lease) error{
		"TryAcquire": func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error {
			return second(c.TryAcquire(ctx, "free"))
		},
		"Acquire": func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error {
			return second(c.Acquire(ctx, "free"))
		},
		"Release": func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			c := f.openUnclosed(pglock.WithTTL(time.Hour))
			release(t, try(t, c, "free"))
			l := try(t, c, "held")
			resume := halt(t, server)
			told := make(chan error, 1)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				told <- call(t.Context(), c, l)
			}()
			rest(t, 200*time.Millisecond) // it is in progress
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			closed := make(chan struct{})
			go func() { defer close(closed); _ = c.Close(ctx) }()
			within(t, 2*time.Second, "Close", closed)
			within(t, 2*time.Second, name, ended) // its statement has 5 s
			if err := <-told; !errors.Is(err, pglock.ErrClosed) {
				t.Errorf("told %v", err)
			}
			resume()
		})
	}
}
