package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// TestCloseWhileTheDatabaseIsAway: a call that was cut off may have left a grant, for which the client
// looks in the background. That does not keep Close for a TTL.
func TestCloseWhileTheDatabaseIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.openUnclosed(pglock.WithTTL(time.Hour))
		release(t, try(t, c, "n"))
		proxy.Cut()
		ctx := bounded(t, 100*time.Millisecond)
		if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told %v", err)
		}
		began := time.Now()
		_ = c.Close(t.Context())                  // nothing is held
		atMost(t, 20*time.Second, "Close", began) // 5 s, and what the machine takes
		proxy.Heal()
		proxy.Sever()
	})
}

func TestCloseReleasesAndWakes(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.openUnclosed()
		var held []*pglock.Lease
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			held = append(held, try(t, c, name))
		}
		waiting := f.leaves(t.Context(), c.Lock("a"))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				check(t, c.Close(t.Context()))
			})
		}
		wg.Wait()
		fails(t, "a waiter got ", <-waiting, pglock.ErrClosed, pglock.ErrNotAcquired)
		for _, l := range held {
			if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrReleased) || !errors.Is(err, pglock.ErrClosed) {
				t.Errorf("%s ended by %v", l.Name(), err)
			}
			check(t, l.Release(t.Context()))
		}
		f.empty("a", "b", "c", "d", "e")
		for name, err := range map[string]error{
			"Acquire":    second(c.Acquire(t.Context(), "n")),
			"TryAcquire": second(c.TryAcquire(t.Context(), "n")),
			"Get":        second(c.Get(t.Context(), "n")),
			"Prune":      second(c.Prune(t.Context(), 0)),
		} {
			if !errors.Is(err, pglock.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

// TestCloseRepeatsNoLoss: Close does not report a lease whose loss its holder knows, even if it was
// lost during Close.
func TestCloseRepeatsNoLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.openUnclosed()
		l := try(t, c, "n", pglock.WithRenewEvery(0))
		f.steal("n")
		fails(t, "after a takeover:", l.Extend(t.Context(), time.Minute), pglock.ErrLost)
		pglock.ReleaseAgainOnClose(c, l)
		check(t, c.Close(t.Context()))
	})
}

// TestCloseIsBoundedByItsContext closes a client whose server does not answer, with calls in
// progress.
func TestCloseIsBoundedByItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.openUnclosed()
		l := try(t, c, "n", pglock.WithRenewEvery(50*time.Millisecond))
		proxy.Cut()
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = c.Get(t.Context(), "n") })
		calls.Go(func() { _ = l.Extend(t.Context(), time.Hour) })
		calls.Go(func() { _, _ = c.Prune(t.Context(), 0) })
		calls.Go(func() { _, _ = c.Acquire(t.Context(), "n") })
		rest(t, 200*time.Millisecond) // a renewal is in progress too
		began := time.Now()
		if err := c.Close(bounded(t, 300*time.Millisecond)); err == nil {
			t.Error("Close says that all was released")
		}
		atMost(t, 300*time.Millisecond, "Close", began)
		calls.Wait()
	})
}

// TestP57_CloseReleasesOnACanceledContext: the usual end after a signal. It is bounded, also if the
// server does not answer.
func TestP57_CloseReleasesOnACanceledContext(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		bubbles(t, fmt.Sprint("cut off ", cut), func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			c := far.openUnclosed(pglock.WithTTL(time.Minute))
			all := many(t, c, 10)
			if cut {
				proxy.Cut()
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			if err := c.Close(ctx); (err != nil) != cut {
				t.Errorf("Close: %v", err)
			}
			atMost(t, timing.StatementBound, "Close", began)
			for _, l := range all {
				if held := f.row(l.Name()).Held(); held != cut {
					t.Errorf("%q is held: %v", l.Name(), held)
				}
			}
		})
	}
}

// TestCloseRepeatsAFailedRelease: the server was away during Release, and is back at Close.
func TestCloseRepeatsAFailedRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.openUnclosed(pglock.WithTTL(time.Minute))
		l := try(t, c, "n")
		proxy.Refuse(true)
		proxy.Sever()
		fails(t, "without a server", l.Release(t.Context()), pglock.ErrUnavailable)
		proxy.Refuse(false)
		check(t, c.Close(t.Context()))
		f.empty("n")
	})
}
