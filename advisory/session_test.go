package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// acquire returns a session lock that is released on cleanup.
func acquire(t *testing.T, pool *pgxpool.Pool, key advisory.Key, opts ...advisory.SessionOption) *advisory.Session {
	t.Helper()
	s, err := advisory.Acquire(soon(t, time.Minute), pool, key, opts...)
	ok(t, err)
	t.Cleanup(func() { _ = s.Release(context.Background()) })
	return s
}

// probed waits until the session has answered three more probes of its watcher, so that a lock that is
// lost meanwhile has had the time to be noticed.
func probed(t *testing.T, pool *pgxpool.Pool, s *advisory.Session) {
	t.Helper()
	seen := map[time.Time]bool{}
	pgtest.Eventually(t, "the session answers probes", func() bool {
		seen[locktest.Scan[time.Time](t, pool, "SELECT coalesce(max(query_start), 'epoch') FROM pg_stat_activity WHERE pid = $1", s.PID())] = true
		return len(seen) > 3 || s.Err() != nil
	})
}

// lost waits for the loss of s and returns how long that took.
func lost(t *testing.T, s *advisory.Session, since time.Time) time.Duration {
	t.Helper()
	locktest.Receive(t, s.Context().Done())
	took := time.Since(since)
	if err := s.Err(); !errors.Is(err, advisory.ErrLost) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", s.PID())) || !errors.Is(context.Cause(s.Context()), advisory.ErrLost) {
		t.Errorf("Err: %v", err)
	}
	return took
}

func TestSessionExcludes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, key := range []advisory.Key{advisory.NewKey("session", t.Name()), advisory.KeyFromInt64(-2001)} {
		type value struct{}
		s := acquire(t, pool, key)
		if s.Err() != nil {
			t.Error(s.Err())
		}
		if n := locksOn(t, pool, key); n != 1 {
			t.Errorf("%d locks", n)
		}
		for what, err := range map[string]error{
			"a session":     second(advisory.TryAcquire(t.Context(), pool, key)),
			"a transaction": advisory.TryLock(t.Context(), begin(t, pool), key),
			"in time": second(advisory.Acquire(t.Context(), pool, key,
				advisory.WithTimeout(50*time.Millisecond))),
			"by ctx": second(advisory.Acquire(soon(t, 50*time.Millisecond), pool, key)),
		} {
			if !errors.Is(err, advisory.ErrNotAcquired) || errors.Is(err, advisory.ErrTimeout) != (what == "in time") ||
				errors.Is(err, context.DeadlineExceeded) != (what == "by ctx") {
				t.Errorf("%s, beside the holder: %v", what, err)
			}
		}
		for range 2 {
			if err := s.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if err := s.Err(); !errors.Is(err, advisory.ErrReleased) || errors.Is(err, advisory.ErrLost) {
			t.Errorf("Err: %v", err)
		}
		if n := locksOn(t, pool, key); n != 0 {
			t.Errorf("after the release: %d locks", n)
		}
		again, err := advisory.TryAcquire(context.WithValue(t.Context(), value{}, "v"), pool, key)
		ok(t, err)
		if again.Context().Value(value{}) != "v" {
			t.Error("the context lacks the caller's values")
		}
		ok(t, again.Release(t.Context()))
	}
}

// TestI8_SessionOutlivesTheContext: ctx bounds acquiring only.
func TestI8_SessionOutlivesTheContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := advisory.Acquire(ctx, pool, advisory.NewKey("session", t.Name()), advisory.WithKeepAliveTimeout(2*time.Second))
	ok(t, err)
	cancel()
	probed(t, pool, s)
	if s.Err() != nil {
		t.Errorf("lost with the caller's context: %v", s.Err())
	}
	ok(t, s.Release(t.Context()))
}

// TestP37_SamePooledSession: a pooled connection on which an earlier user has left a session lock
// does not grant it again, nor does the lock reach the pool's next user.
func TestP37_SamePooledSession(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	key := advisory.KeyFromInt64(37_37_37)
	if _, err := pool.Exec(t.Context(), "SELECT pg_advisory_lock(373737), pg_advisory_lock(373737)"); err != nil {
		t.Fatal(err)
	}
	s := acquire(t, pool, key)
	ok(t, s.Release(t.Context()))
	if n := locksOn(t, pool, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// TestP28_ReleaseChecksTheAnswer: the release of a lock that the session no longer held is ErrLost.
func TestP28_ReleaseChecksTheAnswer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := acquire(t, pool, advisory.NewKey("session", t.Name()))
	ok(t, advisory.Forget(t.Context(), s))
	if err := s.Release(t.Context()); !errors.Is(err, advisory.ErrLost) {
		t.Errorf("Release: %v", err)
	}
}

// TestI6_SessionWaitersHoldNothing: many waiters leave the pool to others, and each is served.
func TestI6_SessionWaitersHoldNothing(t *testing.T) {
	t.Parallel()
	const waiters = 30
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	key := advisory.NewKey("session", t.Name())
	first := acquire(t, pool, key)
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			s, err := advisory.Acquire(soon(t, time.Minute), pool, key)
			if err == nil {
				err = s.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range 50 {
		if err := pool.Ping(soon(t, 5*time.Second)); err != nil {
			t.Fatalf("the pool, with %d waiters: %v", waiters, err)
		}
	}
	ok(t, first.Release(t.Context()))
	all.Wait()
	whole(t, pool)
}

// TestI9_CanceledRelease: the release continues without its caller, and later calls return its
// result.
func TestI9_CanceledRelease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("release", t.Name())
	s, err := advisory.Acquire(t.Context(), pool, key, advisory.WithKeepAliveTimeout(time.Minute))
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Release(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if err := s.Err(); !errors.Is(err, advisory.ErrReleased) && err != nil {
		t.Errorf("meanwhile: %v", err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := s.Release(soon(t, time.Minute)); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
	all.Wait()
	if err := s.Err(); !errors.Is(err, advisory.ErrReleased) {
		t.Errorf("afterwards: %v", err)
	}
	if n := locksOn(t, pool, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	next, err := advisory.TryAcquire(t.Context(), pool, key, advisory.WithKeepAliveTimeout(time.Minute))
	ok(t, err)
	ok(t, next.Release(t.Context()))
	whole(t, pool)
}

// TestI9_BusyTriesReuseTheirConnection: a try that fails leaves no session behind in the server.
func TestI9_BusyTriesReuseTheirConnection(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool, sessions := pairPool(t, direct)
	key := advisory.NewKey("leak", t.Name())
	before := holder(t, direct, key)
	for range 12 {
		if _, err := advisory.TryAcquire(t.Context(), pool, key); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Fatalf("%v", err)
		}
	}
	if n := sessions(); n > 2 {
		t.Errorf("%d sessions", n)
	}
	ok(t, before.Rollback(t.Context()))
}
