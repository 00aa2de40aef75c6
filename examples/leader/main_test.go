package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestLeadership of two replicas: a signal hands it over at once, after the batch, and a lost lease ends the
// batch. The clock of the bubble moves only while all of them wait, so times are exact.
func TestLeadership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks := pglocktest.Fake(t)
		type started struct {
			ctx    context.Context
			lease  *pglock.Lease
			finish chan bool
		}
		batches := make(chan started)
		batch := func(ctx context.Context, l *pglock.Lease) error {
			b := started{ctx, l, make(chan bool)}
			batches <- b
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-b.finish:
				return nil
			}
		}
		signals := map[string]context.CancelFunc{}
		var replicas sync.WaitGroup
		for _, name := range []string{"one", "two"} {
			ctx, stop := context.WithCancel(t.Context())
			signals[name] = stop
			client := locks.Open(pglock.WithHolder(name))
			replicas.Go(func() {
				if err := settle(ctx, client, time.Minute, batch); err != nil {
					t.Error(err)
				}
			})
		}

		first := <-batches
		signals[first.lease.Holder()]()
		synctest.Wait()
		if first.ctx.Err() != nil {
			t.Error("the signal has interrupted the batch")
		}
		locks.RequireHeld(election, first.lease.Holder())
		signaled := time.Now()
		close(first.finish)
		second := <-batches
		if second.lease.Holder() == first.lease.Holder() || time.Since(signaled) > time.Second {
			t.Errorf("%s leads %v after the signal to %s", second.lease.Holder(), time.Since(signaled), first.lease.Holder())
		}

		locks.Lose(second.lease)
		pglocktest.RequireContextEnds(t, second.ctx)
		third := <-batches // the only candidate leads again
		if third.lease.Token() <= second.lease.Token() {
			t.Errorf("token %d after %d", third.lease.Token(), second.lease.Token())
		}
		signals[third.lease.Holder()]()
		close(third.finish)
		replicas.Wait()
		locks.RequireFree(election)
	})
}
