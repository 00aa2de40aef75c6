package pglock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// ghost puts a dead client into the queue for name.
func (f fixture) ghost(name string) {
	f.t.Helper()
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ($1, 'ghost', clock_timestamp() + interval '1 hour')", name)
}

// tickets returns the number of clients with a row in the queue for name.
func (f fixture) tickets(name string) int {
	f.t.Helper()
	return value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE name = $1", name)
}

// TestCallersWithoutATicketDoNotOvertake: a free lock is not for them while others wait, unless
// they barge or the waiters are dead.
func TestCallersWithoutATicketDoNotOvertake(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, name := range []string{"barged", "tried"} {
		held := try(t, c, name)
		f.ghost(name)
		release(t, held)
	}
	freed := time.Now()
	_, err := c.TryAcquire(t.Context(), "tried")
	var busy *pglock.BusyError
	if tried := time.Since(freed); tried < time.Second && (!errors.As(err, &busy) || busy.Holder != "") {
		t.Errorf("a try while somebody else waits: %v", err)
	}
	release(t, try(t, c, "barged", pglock.WithBarging()))
	pgtest.Eventually(t, "the dead head is skipped", func() bool {
		l, err := c.TryAcquire(t.Context(), "tried")
		if err != nil {
			return false
		}
		release(t, l)
		return true
	})
	if took := time.Since(freed); took < time.Second {
		t.Errorf("the head of the queue was given %v to come", took)
	}
	// Once is enough: its ticket is invalid.
	release(t, try(t, c, "tried"))
	release(t, try(t, c, "tried"))
}

// TestRowsAreRemovedAfterUse: a caller that was granted the lock leaves no queue row for long, and
// a closed client leaves none at all.
func TestRowsAreRemovedAfterUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, name := range []string{"kept", "closed"} {
		held := try(t, f.open(), name)
		c := f.openUnclosed()
		got := f.waits(c, name)
		release(t, held)
		l := <-got
		if name == "kept" {
			pgtest.Eventually(t, "its row is removed", func() bool { return f.tickets(name) == 0 })
		}
		release(t, l)
		check(t, c.Close(t.Context()))
		if n := f.tickets(name); n != 0 {
			t.Errorf("%s: %d rows are left", name, n)
		}
	}
}

// TestCrashTakeover: when a holder dies, the head of the queue acquires the lock after the expiry, and
// before the queue would skip it. The others keep their order. A machine that is too slow for that, or for
// five waiters to come before the expiry, has twice the time in the next round.
func TestCrashTakeover(t *testing.T) {
	t.Parallel()
	const clients = 5
	f := newFixture(t)
	holder, all := f.open(), make([]*pglock.Client, clients)
	for i := range all {
		all[i] = f.open()
	}
	for ttl := 3 * time.Second; ttl < time.Minute; ttl *= 2 {
		name := ttl.String()
		try(t, holder, name, pglock.WithTTL(ttl), pglock.WithRenewEvery(0))
		expiry := f.stored(name)
		var mu sync.Mutex // guards served and times
		var served []int
		times := []time.Time{expiry}
		var wg sync.WaitGroup
		for i, c := range all {
			wg.Go(func() {
				l := acquire(t, c, name)
				mu.Lock()
				served = append(served, i)
				times = append(times, value[time.Time](f, "SELECT acquired_at FROM pglock.distributed_locks WHERE name = $1", name))
				mu.Unlock()
				release(t, l)
			})
			pgtest.Eventually(t, "the client is in the queue, or it is too late", func() bool {
				return f.tickets(name) > i || value[bool](f, "SELECT clock_timestamp() > $1", expiry)
			})
		}
		inTime := f.tickets(name) == clients && !value[bool](f, "SELECT clock_timestamp() > $1", expiry)
		wg.Wait()
		if times[1].Before(expiry) {
			t.Fatalf("granted %v before the expiry", expiry.Sub(times[1]))
		}
		for i := range clients {
			inTime = inTime && times[i+1].Sub(times[i]) < timing.HeadGrace
		}
		t.Logf("TTL %v: granted %v after the expiry, in the order %v", ttl, times[1].Sub(expiry), served)
		if inTime && !slices.IsSorted(served) {
			t.Errorf("granted in the order %v", served)
		}
		if inTime {
			return
		}
	}
	t.Error("in no round was each waiter granted the lock in time")
}

// TestP22_RetriesDoNotComeTogether compares the pauses of several waiters.
func TestP22_RetriesDoNotComeTogether(t *testing.T) {
	t.Parallel()
	const waiters, pauses = 50, 12
	last := map[time.Duration]int{}
	for range waiters {
		var sum time.Duration
		next := pglock.NewBackoff()
		for range pauses {
			d := next()
			if d <= 0 || d > 400*time.Millisecond {
				t.Fatalf("a pause of %v", d)
			}
			sum += d
		}
		last[sum.Round(time.Millisecond)]++
	}
	for at, n := range last {
		if n > waiters/5 {
			t.Errorf("%d of %d waiters try again in the same millisecond, %v after they began together", n, waiters, at)
		}
	}
}

// TestP22_OptionsAreNotSpent passes one set of options to many calls.
func TestP22_OptionsAreNotSpent(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithHolder("h")}
	for range 3 {
		l := acquire(t, c, "n", opts...)
		if l.Holder() != "h" || time.Until(l.Deadline()) < 50*time.Second {
			t.Errorf("holder %q, deadline in %v", l.Holder(), time.Until(l.Deadline()))
		}
		release(t, l)
	}
}

// TestRowSecurityDoesNotMakeAcquireSpin: a policy hides the row of a held lock, so that each answer
// looks as if another caller had been faster.
func TestRowSecurityDoesNotMakeAcquireSpin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithPollOnly())
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) " +
		"VALUES ('hidden', pglock.next_fencing_token(), 1, 'somebody', clock_timestamp(), clock_timestamp() + interval '1 hour')")
	f.sql("ALTER TABLE pglock.distributed_locks ENABLE ROW LEVEL SECURITY")
	f.sql("CREATE POLICY visible ON pglock.distributed_locks USING (holder IS DISTINCT FROM 'somebody')")
	release(t, try(t, c, "visible"))
	ctx := bounded(t, 2*time.Second)
	before := proxy.Stats().ToServer
	_, err := c.Acquire(ctx, "hidden")
	fails(t, "Acquire: ", err, pglock.ErrNotAcquired, context.DeadlineExceeded)
	if sent := proxy.Stats().ToServer - before; sent > 300_000 {
		t.Errorf("%d bytes were sent in 2 s", sent)
	}
}
