package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestWithWaitGetsAFreeLockFromASlowServer, however short the wait is.
func TestWithWaitGetsAFreeLockFromASlowServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	release(t, try(t, c, "n"))
	proxy.Delay(30 * time.Millisecond)
	release(t, acquire(t, c, "n", pglock.WithWait(1)))
}

// TestP66_EachCallHasAnAttempt, however short its wait is: also while other callers of the process are at
// work on the name. As many callers as permits are granted them all, in each round that takes less than
// half of the second that an attempt has.
func TestP66_EachCallHasAnAttempt(t *testing.T) {
	t.Parallel()
	const callers, rounds = 20, 100
	f, seen := newFixture(t), &recorder{}
	s := f.open(pglock.WithTTL(time.Hour), pglock.WithObserver(seen.hooks())).Semaphore("s", callers)
	full, slow := 0, 0
	for round := range rounds {
		began := time.Now()
		opt := pglock.WithWait([]time.Duration{1, time.Millisecond}[round%2])
		var wg sync.WaitGroup
		granted := make(chan *pglock.Lease, callers)
		for range callers {
			wg.Go(func() {
				if l, err := s.Acquire(t.Context(), opt); err == nil {
					granted <- l
				} else {
					fails(t, "refused", err, pglock.ErrTimeout)
				}
			})
		}
		wg.Wait()
		close(granted)
		if len(granted) == callers {
			full++
			fails(t, "control: a caller too many", second(s.Acquire(t.Context(), opt)), pglock.ErrTimeout)
		} else if time.Since(began) > timing.FirstAttempt/2 {
			slow++
		}
		for l := range granted {
			release(t, l)
		}
	}
	if full == 0 || full+slow < rounds {
		t.Errorf("each caller was granted a permit in %d of %d rounds only, of which %d were slow", full, rounds, slow)
	}
	for _, e := range await[observe.AcquireEvent](t, seen, rounds*callers+full) {
		if e.Attempts == 0 {
			t.Fatalf("a call made no attempt: %v", e.Err)
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
		release(t, next(t, got))
		l := acquire(t, c, "n", pglock.WithWait(1))
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
	ended := leaving(ctx, c.Lock("n"))
	pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	// No release notifies the head. The next grant does not concern it.
	f.sql("UPDATE pglock.distributed_locks SET holder = 'present', token = pglock.next_fencing_token(), request = gen_random_uuid()")
	_, err := c.Acquire(t.Context(), "n", pglock.WithWait(1))
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Holder != "present" {
		t.Errorf("told %v", err)
	}
	cancel()
	fails(t, "the one that waits", <-ended, context.Canceled)
	_ = gone.Release(t.Context()) // it is lost
}
