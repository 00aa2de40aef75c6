package leasetable_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// TestEachInABatchGetsWhatItAskedFor: its own holder, labels and TTL, whether the lock is known or new. What all of a
// batch have in common is sent once.
func TestEachInABatchGetsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	const calls = 5
	for _, known := range []bool{false, true} {
		for _, alike := range []bool{false, true} {
			t.Run(fmt.Sprintf("known %v, alike %v", known, alike), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := f.open(leasetable.WithMaxConns(2))
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
						l := try(t, c, fmt.Sprint("n", i), leasetable.WithHolder(holder),
							leasetable.WithLabels(map[string]string{"of": of}), leasetable.WithTTL(ttl))
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
