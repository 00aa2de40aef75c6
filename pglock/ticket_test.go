package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
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

// TestClientsAreServedInOrder: first come, first served, across processes.
func TestClientsAreServedInOrder(t *testing.T) {
	t.Parallel()
	const clients = 6
	f := newFixture(t)
	held := try(t, f.open(), "n")
	var mu sync.Mutex
	var served []int
	var wg sync.WaitGroup
	for i := range clients {
		c := f.open()
		wg.Go(func() {
			l := acquire(t, c, "n")
			mu.Lock()
			served = append(served, i)
			mu.Unlock()
			release(t, l)
		})
		pgtest.Eventually(t, 10*time.Second, "the client is in the queue", func() bool { return f.tickets("n") == i+1 })
	}
	release(t, held)
	wg.Wait()
	if !slices.IsSorted(served) || len(served) != clients {
		t.Errorf("served in the order %v", served)
	}
}

// TestCallersWithoutATicketDoNotOvertake: a free lock is not for them while others wait, unless
// they barge or the waiters are dead.
func TestCallersWithoutATicketDoNotOvertake(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, name := range []string{"tried", "barged"} {
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
	pgtest.Eventually(t, 10*time.Second, "the dead head is skipped", func() bool {
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

// TestADeadHeadDelaysOnce: a client that died while it waited delays the others by at most two
// seconds, however long its ticket would have been valid.
func TestADeadHeadDelaysOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "n")
	f.ghost("n")
	c := f.open()
	got := make(chan *pglock.Lease)
	go func() { got <- acquire(t, c, "n") }()
	pgtest.Eventually(t, 10*time.Second, "the client is in the queue", func() bool { return f.tickets("n") == 2 })
	release(t, held)
	freed := time.Now()
	l := <-got
	if took := time.Since(freed); took < time.Second || took > 4*time.Second {
		t.Errorf("granted after %v behind a dead client", took)
	}
	release(t, l)
	again := time.Now()
	release(t, acquire(t, f.open(), "n"))
	if took := time.Since(again); took > time.Second {
		t.Errorf("the next was delayed by %v more", took)
	}
}

// TestI9_ACanceledWaiterLeavesNoRow checks the queue and the locks, for cancellations at any
// moment.
func TestI9_ACanceledWaiterLeavesNoRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "n")
	c := f.open()
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	pgtest.Eventually(t, 10*time.Second, "no row is left", func() bool { return f.tickets("n") == 0 })
	release(t, held)
	release(t, try(t, c, "n"))
}

// TestRowsAreRemovedAfterUse: a caller that was granted the lock leaves no queue row for long, and
// a closed client leaves none at all.
func TestRowsAreRemovedAfterUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, name := range []string{"kept", "closed"} {
		held := try(t, f.open(), name)
		c := f.openUnclosed()
		got := make(chan *pglock.Lease)
		go func() { got <- acquire(t, c, name) }()
		pgtest.Eventually(t, 10*time.Second, "the client is in the queue", func() bool { return f.tickets(name) == 1 })
		release(t, held)
		l := <-got
		if name == "kept" {
			pgtest.Eventually(t, 10*time.Second, "its row is removed", func() bool { return f.tickets(name) == 0 })
		}
		release(t, l)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := f.tickets(name); n != 0 {
			t.Errorf("%s: %d rows are left", name, n)
		}
	}
}

// TestAnInvalidTicketIsReplaced: a waiter that was skipped, or whose row is gone, as after a crash
// of the server, draws a new ticket.
func TestAnInvalidTicketIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.open()
	for name, sql := range map[string]string{
		"skipped": "UPDATE pglock.distributed_locks SET ticket = pglock.next_fencing_token() WHERE name = 'skipped'",
		"gone":    "DELETE FROM pglock.lock_waiters WHERE name = 'gone'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held := try(t, holder, name)
			c := f.open()
			got := make(chan *pglock.Lease)
			go func() { got <- acquire(t, c, name) }()
			ticket := func() (n int64) {
				return value[int64](f, "SELECT coalesce(max(ticket), 0) FROM pglock.lock_waiters WHERE name = $1", name)
			}
			pgtest.Eventually(t, 10*time.Second, "a ticket", func() bool { return ticket() > 0 })
			first := ticket()
			f.sql(sql)
			pgtest.Eventually(t, 20*time.Second, "another ticket", func() bool { return ticket() > first })
			release(t, held)
			release(t, <-got)
		})
	}
}

// TestCrashTakeover: when a holder dies, the head of the queue acquires the lock soon after the
// expiry. The others keep their order.
func TestCrashTakeover(t *testing.T) {
	t.Parallel()
	const clients = 5
	f := newFixture(t)
	try(t, f.open(), "n", pglock.WithTTL(2*time.Second), pglock.WithRenewEvery(0))
	expiry := f.stored("n")
	var mu sync.Mutex
	var served []int
	var first time.Time
	var wg sync.WaitGroup
	for i := range clients {
		c := f.open()
		wg.Go(func() {
			l := acquire(t, c, "n")
			mu.Lock()
			if served = append(served, i); len(served) == 1 {
				first = value[time.Time](f, "SELECT acquired_at FROM pglock.distributed_locks WHERE name = 'n'")
			}
			mu.Unlock()
			release(t, l)
		})
		pgtest.Eventually(t, 10*time.Second, "the client is in the queue", func() bool { return f.tickets("n") == i+1 })
	}
	wg.Wait()
	if !slices.IsSorted(served) {
		t.Errorf("served in the order %v", served)
	}
	if late := first.Sub(expiry); late < 0 || late > time.Second { // usually 20 ms
		t.Errorf("granted %v after the expiry", late)
	}
}

// TestManyNamesManyWaiters has many local queues in few clients. All waiters acquire their locks.
func TestManyNamesManyWaiters(t *testing.T) {
	t.Parallel()
	const clients, names, each = 3, 40, 3
	f := newFixture(t)
	var wg sync.WaitGroup
	for range clients {
		c := f.open()
		for n := range names {
			for range each {
				wg.Go(func() { release(t, acquire(t, c, fmt.Sprint("n", n))) })
			}
		}
	}
	wg.Wait()
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); n != 0 {
		t.Errorf("%d locks are held", n)
	}
}
