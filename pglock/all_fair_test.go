package pglock_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
)

// TestAcquireAllGetsItsShare: eight names are in use all the time, each by callers of several clients who
// queue up for that name alone. A caller for all eight is granted them within twice its fair share: on
// average, the others get at most two turns each before it, at the name where they get most. It also
// measures the cost: while the caller for all is at the head of a queue, that name is idle until the
// others are free.
func TestAcquireAllGetsItsShare(t *testing.T) {
	t.Parallel()
	const names, clients, rounds = 8, 3, 20
	f := newFixture(t)
	name := func(i int) string { return fmt.Sprint("n", i) }
	var all []string
	for i := range names {
		all = append(all, name(i))
	}
	var granted [names]atomic.Int64
	var waited, inUse atomic.Int64
	stop := make(chan struct{})
	var singles sync.WaitGroup
	for range clients {
		c := f.open()
		for range 3 { // it opens its connections
			l, err := locktest.All(c, all...).Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release(t, l)
		}
		for i := range names {
			singles.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					began := time.Now()
					l, err := c.Acquire(t.Context(), name(i))
					if err != nil {
						t.Error(err)
						return
					}
					waited.Add(int64(time.Since(began)))
					granted[i].Add(1)
					held := time.Now()
					<-time.After(time.Millisecond)
					inUse.Add(int64(time.Since(held)))
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	total := func() (n int64) {
		for i := range granted {
			n += granted[i].Load()
		}
		return n
	}
	// measure returns grants per second and name, and the share of the time that a name is in use.
	measure := func(during func()) (rate, used float64) {
		began, n, use := time.Now(), total(), inUse.Load()
		during()
		took := time.Since(began)
		return float64(total()-n) / names / took.Seconds(), float64(inUse.Load()-use) / names / float64(took)
	}
	rest(t, 300*time.Millisecond)
	waited.Store(0)
	before := total()
	rate, used := measure(func() { rest(t, time.Second) })
	single := time.Duration(waited.Load() / (total() - before))

	c := f.open()
	var sum, longest time.Duration
	var turns, most int64
	allRate, allUsed := measure(func() {
		for range rounds {
			var at [names]int64
			for i := range granted {
				at[i] = granted[i].Load()
			}
			began := time.Now()
			l, err := locktest.All(c, all...).Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			var n int64
			for i := range granted {
				n = max(n, granted[i].Load()-at[i])
			}
			release(t, l)
			sum, longest = sum+took, max(longest, took)
			turns, most = turns+n, max(most, n)
		}
	})
	close(stop)
	singles.Wait()
	t.Logf("one name: mean wait %v, %.0f grants/s a name, in use %.0f %% of the time", single.Round(10*time.Microsecond), rate, 100*used)
	t.Logf("beside a caller for all %d, again and again: mean wait for all %v, longest %v; %.0f grants/s a name to others, in use by them %.0f %% of the time",
		names, (sum / rounds).Round(10*time.Microsecond), longest.Round(10*time.Microsecond), allRate, 100*allUsed)
	mean := float64(turns) / rounds
	t.Logf("before the caller for all, others were granted a name %.1f times, at most %d times: the fair share is %d", mean, most, clients)
	if mean > 2*clients {
		t.Errorf("others were granted a name %.1f times before the caller for all", mean)
	}
}
