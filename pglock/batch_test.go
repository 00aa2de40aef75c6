package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// TestEachInABatchGetsItsOwnOptions checks holder, labels and TTL, for new and known locks. Values
// that all of a batch have in common are sent once.
func TestEachInABatchGetsItsOwnOptions(t *testing.T) {
	t.Parallel()
	const calls = 5
	for _, known := range []bool{false, true} {
		for _, alike := range []bool{false, true} {
			t.Run(fmt.Sprintf("known %v, alike %v", known, alike), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := f.open(pglock.WithMaxConns(2))
				for i := 0; known && i < calls; i++ {
					release(t, try(t, c, fmt.Sprint("n", i)))
				}
				resume := f.occupy(c)
				var wg sync.WaitGroup
				for i := range calls {
					as := i
					if alike {
						as = 1
					}
					holder, of, ttl := fmt.Sprint("holder ", as), fmt.Sprint(as), time.Duration(1+as)*time.Minute
					wg.Go(func() {
						l := try(t, c, fmt.Sprint("n", i), pglock.WithHolder(holder),
							pglock.WithLabels(map[string]string{"of": of}), pglock.WithTTL(ttl))
						got, err := c.Get(t.Context(), l.Name())
						if err != nil || got.Holder != holder || got.Labels["of"] != of || got.Remaining.Round(time.Minute) != ttl {
							t.Errorf("call %d was granted as %+v, %v", i, got, err)
						}
						release(t, l)
					})
				}
				gathered(t, c, calls)
				resume()
				wg.Wait()
			})
		}
	}
}

// TestCallsThatGatherBehindAnInlineCallAreSent: a caller that sends its own statement counts as the
// only worker here. When it is done, the calls that gathered are sent, without a further call.
func TestCallsThatGatherBehindAnInlineCallAreSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2))
	resume := f.stall()
	first, second := make(chan *pglock.Lease, 1), make(chan *pglock.Lease, 1)
	go func() {
		l, err := c.TryAcquire(context.WithoutCancel(t.Context()), "in the way", pglock.WithHolder("stalled"))
		if err != nil {
			t.Error(err)
		}
		first <- l
	}()
	f.awaitStalled()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l, err := c.TryAcquire(t.Context(), "n")
		if err != nil {
			t.Error(err)
		}
		second <- l
	}()
	gathered(t, c, 1)
	resume()
	within(t, 10*time.Second, "what gathered is answered", answered)
	for _, l := range []*pglock.Lease{<-first, <-second} {
		if l != nil {
			release(t, l)
		}
	}
}
