package pglock_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestWaitersOfAProcessAreServedInOrder: first come, first served, also if some in between leave.
func TestWaitersOfAProcessAreServedInOrder(t *testing.T) {
	t.Parallel()
	const waiters = 20
	c := newFixture(t).open()
	held := try(t, c, "n")
	var mu sync.Mutex
	var served []int
	var wg sync.WaitGroup
	leavers, leave := context.WithCancel(t.Context())
	for i := range waiters {
		ctx := t.Context()
		if i%3 == 1 {
			ctx = leavers
		}
		wg.Go(func() {
			l, err := c.Acquire(ctx, "n")
			if err != nil {
				return
			}
			mu.Lock()
			served = append(served, i)
			mu.Unlock()
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		pgtest.Eventually(t, 5*time.Second, "the waiter is in line", func() bool { return pglock.Waiting(c, "n") == i+1 })
	}
	leave()
	pgtest.Eventually(t, 5*time.Second, "some leave", func() bool { return pglock.Waiting(c, "n") == waiters-7 })
	release(t, held)
	wg.Wait()
	if !slices.IsSorted(served) {
		t.Errorf("served in the order %v", served)
	}
	if len(served) != waiters-7 {
		t.Errorf("of %d waiters that stayed %d were served", waiters-7, len(served))
	}
	if n := pglock.Waiting(c, "n"); n != 0 {
		t.Errorf("%d are still in line", n)
	}
}
