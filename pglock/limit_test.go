package pglock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestWithWaitGivesUpInTime, as the head of the local queue and behind it, and leaves nothing.
func TestWithWaitGivesUpInTime(t *testing.T) {
	t.Parallel()
	const wait = 200 * time.Millisecond
	f := newFixture(t)
	holder := try(t, f.open(), "n", pglock.WithHolder("somebody"))
	c := f.open()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			began := time.Now()
			_, err := c.Acquire(t.Context(), "n", pglock.WithWait(wait))
			if took := time.Since(began); took < wait || took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			var late *pglock.WaitError
			if !errors.As(err, &late) || late.Waited < wait || !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, pglock.ErrTimeout) {
				t.Errorf("told %v", err)
			}
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("no context has ended: %v", err)
			}
		})
	}
	wg.Wait()
	if n := pglock.Waiting(c, "n"); n != 0 {
		t.Errorf("%d still wait", n)
	}
	pgtest.Eventually(t, 5*time.Second, "no ticket is left", func() bool { return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 0 })
	release(t, holder)
	release(t, try(t, f.open(), "n"))
}

// TestWithWaitZeroIsOneTry that writes nothing.
func TestWithWaitZeroIsOneTry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := try(t, f.open(), "n", pglock.WithHolder("somebody"))
	const state = `SELECT (SELECT xmin::text || ' ' || ctid::text FROM pglock.distributed_locks) || ' ' || (SELECT count(*) FROM pglock.lock_waiters)`
	before := value[string](f, state)
	_, err := f.open(pglock.WithWait(0)).Acquire(t.Context(), "n") // as the client's default
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Holder != "somebody" || busy.Token != holder.Token() || errors.As(err, new(*pglock.WaitError)) {
		t.Errorf("told %v", err)
	}
	if after := value[string](f, state); after != before {
		t.Errorf("the try wrote: %s, before %s", after, before)
	}
	release(t, holder)
}

// TestWithWaitDoesNotBoundTheLease: I8 holds for this bound as well.
func TestWithWaitDoesNotBoundTheLease(t *testing.T) {
	t.Parallel()
	type key struct{}
	l, err := newFixture(t).open().Acquire(context.WithValue(t.Context(), key{}, "value"), "n", pglock.WithWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	rest(t, 150*time.Millisecond)
	if err := errors.Join(l.Err(), l.Context().Err()); err != nil {
		t.Errorf("the lease ended with the wait: %v", err)
	}
	if l.Context().Value(key{}) != "value" {
		t.Error("the lease's context has lost the values of the caller's")
	}
	release(t, l)
}

// TestWithWaitGetsAFreeLockFromASlowServer, however short the wait is.
func TestWithWaitGetsAFreeLockFromASlowServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	release(t, try(t, c, "n"))
	proxy.Delay(30 * time.Millisecond)
	release(t, acquire(t, c, "n", pglock.WithWait(1)))
}

// TestP66_EachCallHasAnAttempt, however short its wait is: also while other callers of the process
// are at work on the name. As many callers as permits are granted them all.
func TestP66_EachCallHasAnAttempt(t *testing.T) {
	t.Parallel()
	const callers = 20
	f := newFixture(t)
	s := f.open(pglock.WithTTL(time.Hour)).Semaphore("s", callers)
	for _, wait := range []time.Duration{1, time.Millisecond} {
		for range 5 {
			var wg sync.WaitGroup
			granted := make(chan *pglock.Lease, callers)
			for range callers {
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), pglock.WithWait(wait))
					if err != nil {
						t.Errorf("within %v: %v", wait, err)
						return
					}
					granted <- l
				})
			}
			wg.Wait()
			close(granted)
			_, err := s.Acquire(t.Context(), pglock.WithWait(wait)) // the control
			if full := len(granted) == callers; full && !errors.Is(err, pglock.ErrTimeout) {
				t.Errorf("a caller too many: %v", err)
			}
			for l := range granted {
				release(t, l)
			}
		}
	}
}

// TestP66_AnAttemptBesideAnIdleQueue: an earlier caller of the process has waited, and the lock was
// just released.
func TestP66_AnAttemptBesideAnIdleQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other, c := f.open(), f.open()
	for range 10 {
		held := try(t, other, "n")
		got := f.waits(c, "n")
		release(t, held)
		release(t, <-got)
		l, err := c.Acquire(t.Context(), "n", pglock.WithWait(1))
		if err != nil {
			t.Fatalf("the lock is free: %v", err)
		}
		release(t, l)
	}
}

// TestP66_TheLastAttemptKnowsTheHolder: a call whose time ends behind another one of its process says
// who holds the lock then, and not who held it when that one asked.
func TestP66_TheLastAttemptKnowsTheHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other, c := f.open(), f.open()
	gone := try(t, other, "n", pglock.WithHolder("gone"), pglock.WithTTL(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { _, err := c.Acquire(ctx, "n"); ended <- err }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	// No release notifies the head. The next grant does not concern it.
	f.sql("UPDATE pglock.distributed_locks SET holder = 'present', token = pglock.next_fencing_token(), request = gen_random_uuid()")
	_, err := c.Acquire(t.Context(), "n", pglock.WithWait(1))
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Holder != "present" {
		t.Errorf("told %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that waits: %v", err)
	}
	_ = gone.Release(t.Context()) // it is lost
}

// TestWithWaitKnowsWhatEndedFirst tells the end of the wait from that of the caller's context.
func TestWithWaitKnowsWhatEndedFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := try(t, f.open(), "n")
	c := f.open(pglock.WithWait(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Acquire(ctx, "n")
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, pglock.ErrTimeout) {
		t.Errorf("the context ended first: %v", err)
	}
	// The caller's own cause may be the same sentinel.
	ctx, cancel = context.WithTimeoutCause(t.Context(), 50*time.Millisecond, pglock.ErrTimeout)
	defer cancel()
	if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pglock.ErrTimeout) {
		t.Errorf("the context ended first, with a cause: %v", err)
	}
	release(t, holder)
}

// TestWithWaitLeavesNoGrant: waits end while releases, hand-offs and wake-ups are in progress.
// Afterwards the lock is soon free, although the TTL is an hour.
func TestWithWaitLeavesNoGrant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var wg sync.WaitGroup
	var granted, refused atomic.Int64
	var inside atomic.Int64
	until := time.Now().Add(2 * time.Second)
	for range 2 {
		c := f.open(pglock.WithTTL(time.Hour))
		for range 4 {
			wg.Go(func() {
				for time.Now().Before(until) {
					l, err := c.Acquire(t.Context(), "n", pglock.WithWait(1+rand.N(6*time.Millisecond)))
					if err != nil {
						refused.Add(1)
						if !errors.Is(err, pglock.ErrTimeout) {
							t.Errorf("told %v", err)
						}
						continue
					}
					granted.Add(1)
					if inside.Add(1) != 1 {
						t.Error("two holders")
					}
					inside.Add(-1)
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if granted.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d grants, %d refusals: the test needs both", granted.Load(), refused.Load())
	}
	t.Logf("%d grants, %d refusals", granted.Load(), refused.Load())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // revoking a late grant takes a moment
	defer cancel()
	l, err := f.open().Acquire(ctx, "n")
	if err != nil {
		t.Fatalf("the lock is held by nobody: %v", err)
	}
	release(t, l)
}
