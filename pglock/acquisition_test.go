package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// TestWithWaitGetsAFreeLockFromASlowServer, however short the wait is.
func TestWithWaitGetsAFreeLockFromASlowServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		release(t, try(t, c, "n"))
		proxy.Delay(30 * time.Millisecond)
		release(t, acquire(t, c, "n", pglock.WithWait(1)))
	})
}

// TestP66_EachCallHasAnAttempt, however short its wait is: also while other callers of the process are at
// work on the name. As many callers as permits are granted them all.
func TestP66_EachCallHasAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const callers = 20
		s := f.slow().open(pglock.WithTTL(time.Hour)).Semaphore("s", callers)
		for _, wait := range []time.Duration{1, time.Millisecond} {
			var all sync.WaitGroup
			leases := make([]*pglock.Lease, callers)
			for i := range leases {
				all.Go(func() { leases[i] = held(t, s, pglock.WithWait(wait)) })
			}
			all.Wait()
			var timeout *pglock.WaitError
			if _, err := s.Acquire(t.Context(), pglock.WithWait(wait)); !errors.As(err, &timeout) || !errors.Is(err, pglock.ErrTimeout) {
				t.Errorf("control: a caller too many: %v", err)
			}
			for _, l := range leases {
				release(t, l)
			}
		}
	})
}

// TestP66_AnAttemptBesideAnIdleQueue: an earlier caller of the process has waited, and the lock was
// just released.
func TestP66_AnAttemptBesideAnIdleQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		other, c := f.open(), f.open()
		for range 10 {
			held := try(t, other, "n")
			got := f.waits(c.Lock("n"))
			release(t, held)
			release(t, next(t, got))
			l := acquire(t, c, "n", pglock.WithWait(1))
			release(t, l)
		}
	})
}

// TestP66_TheLastAttemptKnowsTheHolder: a call whose time ends behind another one of its process says
// who holds the lock then, and not who held it when that one asked.
func TestP66_TheLastAttemptKnowsTheHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		other, c := f.open(), f.open()
		gone := try(t, other, "n", pglock.WithHolder("gone"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := f.leaves(ctx, c.Lock("n"))
		fence, err := gone.HandOver()
		must(t, err)
		present, err := other.Adopt(t.Context(), fence, pglock.WithHolder("present")) // which notifies nobody
		must(t, err)
		var busy *pglock.BusyError
		if _, err := c.Acquire(t.Context(), "n", pglock.WithWait(1)); !errors.As(err, &busy) || busy.Holder != "present" {
			t.Errorf("told %v", err)
		}
		cancel()
		fails(t, "the one that waits", <-ended, context.Canceled)
		release(t, present)
	})
}
