package pglocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestAWaiterSleepsWhileTheHolderRenews: the refresh of its ticket sees the renewals, so the waiter makes few
// attempts, although the grant that it met would have expired many times.
func TestAWaiterSleepsWhileTheHolderRenews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := make(chan int, 2)
		k := pglocktest.Fake(t)
		c := k.Open(pglock.WithObserver(observe.Hooks{Acquire: func(_ context.Context, e observe.AcquireEvent) { attempts <- e.Attempts }}))
		held := k.Busy("n", "holder")
		go func() {
			l, err := c.Acquire(t.Context(), "n")
			locktest.OK(t, err)
			locktest.OK(t, l.Release(t.Context()))
		}()
		<-time.After(time.Hour)
		locktest.OK(t, held.Release(t.Context()))
		if n := <-attempts; n > 60 { // about 20; 150 if it tries at each expiry
			t.Errorf("%d attempts in an hour", n)
		}
		synctest.Wait()
	})
}
