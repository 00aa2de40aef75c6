package leader_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestRunStaysInTheQueue: WithWait, given to the election or the client, does not make Run leave the
// queue and campaign again. It is elected before a candidate that came later.
func TestRunStaysInTheQueue(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Millisecond} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			term := elect(t, f.candidate("leader"), "")
			var failures atomic.Int32
			seen := observe.Hooks{Acquire: func(_ context.Context, e observe.AcquireEvent) {
				if e.Err != nil {
					failures.Add(1)
				}
			}}
			client := f.client(pglock.WithWait(wait), pglock.WithObserver(seen))
			e := f.on(client, leader.WithLease(pglock.WithHolder("first"), pglock.WithWait(wait)))
			elected := make(chan string, 2)
			run(t, e, func(ctx context.Context, _ *leader.Term) error {
				elected <- "first"
				<-ctx.Done()
				return ctx.Err()
			})
			pgtest.Eventually(t, "Run waits", func() bool {
				all, err := f.waiters(t.Context())
				return err == nil && len(all) == 1
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			second := f.campaigning(ctx, f.candidate("second"), "second")
			go func() {
				if <-second != nil {
					elected <- "second"
				}
			}()
			resign(t, term)
			if got := locktest.Receive(t, elected); got != "first" || failures.Load() != 0 {
				t.Errorf("%s is elected, after %d campaigns of Run without a grant", got, failures.Load())
			}
		})
	}
}

// TestElectionsDoNotJoin: another candidate that campaigns under the context of a term is not a second
// leader with the same token, also if leases join. The term stays.
func TestElectionsDoNotJoin(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]leader.Option{
		"WithJoin": {leader.WithLease(pglock.WithJoin())}, "control: without": nil, "WithJoin of the client": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.client()
			if name == "WithJoin of the client" {
				c = f.client(pglock.WithJoin())
			}
			term := elect(t, f.on(c), "")
			other := f.on(c, opts...)
			if second, err := other.Campaign(term.Lease().Context(), ""); second != nil || !errors.Is(err, pglock.ErrHeldByCaller) {
				t.Errorf("%+v, %v", second, err)
			}
			if _, leads := other.Term(); leads || term.Lease().Err() != nil {
				t.Errorf("the other candidate leads: %v, the term: %v", leads, term.Lease().Err())
			}
			resign(t, term)
		})
	}
}
