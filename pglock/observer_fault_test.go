package pglock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// slowObserver does not return from its first renewal until stop is closed.
type slowObserver struct {
	pglock.NopObserver
	stuck atomic.Int32
	stop  chan struct{}
}

func (o *slowObserver) ObserveRenewal(context.Context, pglock.RenewalEvent) {
	if o.stuck.Add(1) == 1 {
		<-o.stop
	}
}

// TestASlowObserverLosesNoLease: the renewals that it is told of have been recorded, and the next ones
// are planned, before it is called.
func TestASlowObserverLosesNoLease(t *testing.T) {
	t.Parallel()
	const leases, ttl = 20, 3 * time.Second
	slow, r := &slowObserver{stop: make(chan struct{})}, &recorder{}
	c := newFixture(t).open(pglock.WithObserver(r), pglock.WithObserver(slow), pglock.WithTTL(ttl), pglock.WithBatches(4, false))
	all := make([]*pglock.Lease, leases)
	for i := range all {
		all[i] = try(t, c, string(rune('a'+i)))
	}
	await[pglock.RenewalEvent](t, r, 4*leases) // for longer than the TTL
	for _, l := range all {
		if l.Err() != nil {
			t.Errorf("%q: %v", l.Name(), l.Err())
		}
		release(t, l)
	}
	close(slow.stop)
	pgtest.Eventually(t, 20*time.Second, "it receives the rest", func() bool {
		return int(slow.stuck.Load()) == len(events[pglock.RenewalEvent](r))
	})
}

// TestObserversAreCalledBeforeTheCallReturns, so that a program's last lease is counted.
func TestObserversAreCalledBeforeTheCallReturns(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	c := newFixture(t).open(pglock.WithObserver(r))
	release(t, acquire(t, c, "n"))
	if n, m := len(events[pglock.AcquireEvent](r)), len(events[pglock.ReleaseEvent](r)); n != 1 || m != 1 {
		t.Errorf("%d grants and %d releases observed", n, m)
	}
}
