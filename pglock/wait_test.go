package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// tickets is a store that calls drawing before each ticket is drawn, in a statement that began
// before, and so sees the lock held. With invalid, no ticket counts.
type tickets struct {
	backend.Store
	drawing func()
	invalid bool
}

func (s tickets) Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, listens bool) (leasetable.Position, error) {
	s.drawing()
	p, err := s.Store.Join(ctx, client, r, waited, listens)
	p.Free, p.Remaining = false, time.Hour
	return p, err
}

func (s tickets) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	grants, err := s.Store.AcquireFull(ctx, batch)
	for i, r := range batch {
		grants[i].Invalid = s.invalid && grants[i].Outcome == leasetable.Busy && r.Ticket > 0
	}
	return grants, err
}

// TestP46_SubscribeThenCheckAgain: a release during the drawing of a ticket does not see the ticket and sends
// no notification, so the waiter makes an attempt as soon as it has the ticket.
func TestP46_SubscribeThenCheckAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		held := try(t, f.open(), "n", pglock.WithTTL(time.Hour))
		var released time.Time
		c := f.through(func(s backend.Store) backend.Store {
			return tickets{Store: s, drawing: func() {
				if released.IsZero() {
					release(t, held)
					released = time.Now()
				}
			}}
		}).open(pglock.WithPollOnly())
		l := acquire(t, c, "n")
		if late := time.Since(released); late > 0 {
			t.Errorf("the attempt came %v after the ticket", late)
		}
		release(t, l)
	})
}

// lateAttempt is a store where an attempt of a call arrives just before the call draws a ticket.
type lateAttempt struct {
	backend.Store
	arrives func(r *leasetable.Request)
}

func (s lateAttempt) Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, listens bool) (leasetable.Position, error) {
	s.arrives(r)
	return s.Store.Join(ctx, client, r, waited, listens)
}

// TestALateGrantUsesNoTicketUp: the attempt after the ticket finds a grant that was made before it. The ticket is
// deleted, so that it keeps no other client from the lock.
func TestALateGrantUsesNoTicketUp(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		held := try(t, f.open(), "n", pglock.WithTTL(time.Hour))
		c := f.through(func(s backend.Store) backend.Store {
			return lateAttempt{s, func(r *leasetable.Request) {
				release(t, held)
				_, err := s.AcquireFull(t.Context(), []*leasetable.Request{r})
				must(t, err)
			}}
		}).open()
		l := acquire(t, c, "n")
		synctest.Wait()
		if row := f.row("n"); row.Token != l.Token() || len(row.Waiters) > 0 {
			t.Errorf("the lease has the token %d, and the lock: %+v", l.Token(), row)
		}
		release(t, l)
	})
}

// TestAnInvalidTicketIsNotDrawnInALoop: each new ticket is invalid at once, since the lock's row is
// from a cluster with larger tickets. A waiter pauses before it draws another.
func TestAnInvalidTicketIsNotDrawnInALoop(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		held := try(t, f.open(), "n")
		drawn := 0
		c := f.through(func(s backend.Store) backend.Store {
			return tickets{s, func() { drawn++ }, true}
		}).open(pglock.WithPollOnly())
		fails(t, "told", second(c.Acquire(bounded(t, 2*time.Second), "n")), context.DeadlineExceeded)
		if drawn < 2 || drawn > 40 {
			t.Errorf("%d tickets were drawn in 2s", drawn)
		}
		release(t, held)
		release(t, acquire(t, c, "n"))
	})
}

// TestAnOutageEndsEveryWaitAfterThirtySeconds: also for callers behind the head of their local
// queue, which make no attempts.
func TestAnOutageEndsEveryWaitAfterThirtySeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		held := try(t, f.open(pglock.WithTTL(time.Hour)), "n")
		proxy, far := f.proxied()
		c := far.openUnclosed()
		type end struct {
			err  error
			took time.Duration
		}
		ends := make(chan end, 4)
		wait := func() {
			began := time.Now()
			_, err := c.Acquire(t.Context(), "n")
			ends <- end{err, time.Since(began)}
		}
		for range 3 {
			go wait()
		}
		synctest.Wait()
		proxy.Cut() // each attempt hangs until its bound of 5 s
		rest(t, 5*time.Second)
		go wait() // its own thirty seconds begin later
		var took []time.Duration
		for i := range 4 {
			got := <-ends
			took = append(took, got.took)
			if !errors.Is(got.err, pglock.ErrUnavailable) || !errors.Is(got.err, pglock.ErrNotAcquired) {
				t.Errorf("ended with %v", got.err)
			}
			// The first failure is known after 5 s, and the last attempt takes as long.
			if got.took < 30*time.Second || got.took > 43*time.Second {
				t.Errorf("call %d ended after %v", i, got.took)
			}
		}
		t.Logf("ended after %v", took)
		if took[2]-took[0] > 2*time.Second {
			t.Errorf("of one outage three callers were told after %v", took[:3])
		}
		proxy.Heal()
		check(t, c.Close(context.WithoutCancel(t.Context())))
		release(t, held)
	})
}

// TestP56_ACanceledWaiterBlocksNobody: after its call has returned, its ticket keeps nobody from a
// free lock. The call waits for the deletion of its ticket, also one that is being drawn, though
// only for timing.CancelGrace.
func TestP56_ACanceledWaiterBlocksNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		holder, waiter, other := f.open(), f.slow().open(pglock.WithTTL(time.Hour)), f.open()
		for i := range 40 {
			l := held(t, holder.Lock("n"))
			ctx, cancel := context.WithCancel(t.Context())
			left := leaving(ctx, waiter.Lock("n"))
			rest(t, time.Duration(i/2)*roundTrip/4) // perhaps while its ticket is drawn
			cancel()
			began := time.Now()
			fails(t, "told", <-left, context.Canceled)
			atMost(t, timing.CancelGrace, "it", began)
			release(t, l)
			release(t, try(t, []*pglock.Client{waiter, other}[i%2], "n"))
		}
	})
}

// TestAServerCrashUnderWaiters: the server is away, and comes back with an empty queue.
func TestAServerCrashUnderWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const waiters = 100
		held := try(t, f.open(), "n", pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(0))
		var wg sync.WaitGroup
		for _, c := range []*pglock.Client{f.open(), f.open()} {
			for range waiters {
				wg.Go(func() { release(t, acquire(t, c, "n")) })
			}
		}
		synctest.Wait()
		f.SetDown(true)
		f.Crash()
		rest(t, time.Second)
		f.SetDown(false)
		wg.Wait()
		fails(t, "the first lease", held.Err(), pglock.ErrLost)
		rest(t, time.Second)
		f.empty("n")
	})
}

// TestWaitingIsQuiet: while a lock stays held and is renewed, a waiter that listens looks at it rarely,
// even when the grant that it knew of would have expired. Others poll.
func TestWaitingIsQuiet(t *testing.T) {
	t.Parallel()
	const quiet = 5 * time.Minute
	for name, tc := range map[string]struct {
		opts        []pglock.Option
		least, most int // statements in that time
	}{
		"listens": {nil, 20, 60}, // two or three refreshes in half a minute, and an attempt or two
		"polls":   {[]pglock.Option{pglock.WithPollOnly()}, 600, 3000},
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			held := try(t, f.open(), "n", pglock.WithRenewEvery(3*time.Second))
			n, far := f.proxied()
			got := f.waits(far.open(tc.opts...).Lock("n"))
			rest(t, time.Minute)
			before := n.count()
			rest(t, quiet)
			if sent := n.count() - before; sent < tc.least || sent > tc.most {
				t.Errorf("%d statements in %v", sent, quiet)
			}
			release(t, held)
			release(t, next(t, got))
		})
	}
}

// TestADeadHead: the next waiter is told of a release to the head, and is granted the lock soon after the
// queue may skip that, although it has long been quiet.
func TestADeadHead(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		held := try(t, f.open(), "n", pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
		f.ghost("n")
		got := f.waits(f.open().Lock("n"))
		rest(t, 4*time.Second) // its pauses are longer than the bound by then
		release(t, held)
		freed := time.Now()
		l := next(t, got)
		if took := time.Since(freed); took < timing.HeadGrace || took > 2*timing.HeadGrace {
			t.Errorf("the head was skipped after %v", took)
		}
		release(t, l)
	})
}

// TestCallersWithoutATicketDoNotOvertake: a free lock is not for them while others wait, unless
// they barge or the waiters are dead.
func TestCallersWithoutATicketDoNotOvertake(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		held := try(t, c, "n")
		f.ghost("n")
		release(t, held)
		freed := time.Now()
		var busy *pglock.BusyError
		if _, err := c.TryAcquire(t.Context(), "n"); !errors.As(err, &busy) || busy.Holder != "" {
			t.Errorf("a try while somebody else waits: %v", err)
		}
		rest(t, timing.HeadGrace-time.Millisecond)
		isBusy(t, "a try before the dead head is skipped", c.Lock("n"))
		rest(t, time.Millisecond)
		for range 2 { // once is enough: its ticket is invalid
			release(t, try(t, c, "n"))
		}
		held = try(t, c, "barged")
		f.ghost("barged")
		release(t, held)
		release(t, try(t, c, "barged", pglock.WithBarging()))
		if since := time.Since(freed); since > timing.HeadGrace {
			t.Errorf("it took %v", since)
		}
	})
}

// TestRowsAreRemovedAfterUse: a caller that was granted the lock leaves no queue row for long, and
// a closed client leaves none at all.
func TestRowsAreRemovedAfterUse(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		bubbles(t, fmt.Sprint("closed ", closed), func(t *testing.T, f fake) {
			held := try(t, f.open(), "n")
			c := f.open()
			got := f.waits(c.Lock("n"))
			release(t, held)
			l := next(t, got)
			if closed {
				check(t, c.Close(t.Context()))
				f.empty("n")
				return
			}
			rest(t, 2*time.Second)
			if row := f.row("n"); len(row.Waiters) > 0 {
				t.Errorf("%+v", row.Waiters)
			}
			release(t, l)
		})
	}
}

// TestCrashTakeover: when a holder dies, the head of the queue acquires the lock at the expiry, and
// the others keep their order.
func TestCrashTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		try(t, f.open(), "n", pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(0))
		expiry := f.expiry("n")
		var queue []<-chan *pglock.Lease
		for range 5 {
			queue = append(queue, f.waits(f.open().Lock("n")))
		}
		for i, got := range queue {
			l := next(t, got)
			if late := time.Since(expiry); late < 0 || late > timing.HeadGrace/2 {
				t.Errorf("waiter %d was granted the lock %v after the expiry", i, late)
			}
			release(t, l)
		}
	})
}

// TestP67_ADeadWriterDoesNotBlockReaders: a writer that waits behind a reader keeps newcomers out as long as its process
// lives, through more than one lifetime of its ticket, and for a few seconds longer.
func TestP67_ADeadWriterDoesNotBlockReaders(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		reader := held(t, f.open().Reader("rw"))
		proxy, far := f.proxied()
		ctx, cancel := context.WithCancel(t.Context())
		gone := f.leaves(ctx, far.open().Writer("rw"))
		newcomer := f.open().Reader("rw")
		for range 60 {
			rest(t, time.Second)
			isBusy(t, "a newcomer beside a living writer", newcomer)
		}
		proxy.Cut()
		died := time.Now()
		release(t, held(t, newcomer))
		atMost(t, timing.KeepTicket+timing.HeadGrace, "a dead writer kept a reader out", died) // a ticket for one permit lives for longer
		cancel()
		t.Log("given up:", <-gone)
		proxy.Heal()
		release(t, reader)
	})
}

// TestASuccessorHasItsOwnWeight: a waiter that takes over the ticket of another one of its process is
// in the queue with the number of permits that it needs itself.
func TestASuccessorHasItsOwnWeight(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		s := f.open().Semaphore("s", 3)
		held := tried(t, f.open().Semaphore("s", 3).Weight(2))
		ctx, cancel := context.WithCancel(t.Context())
		left := f.leaves(ctx, s.Weight(3))
		granted := f.waits(s.Weight(2))
		if w := f.row("s").Waiters; len(w) != 1 || w[0].Permits != 3 {
			t.Fatalf("the head: %+v", w)
		}
		cancel()
		fails(t, "the first waiter", <-left, context.Canceled)
		synctest.Wait()
		if w := f.row("s").Waiters; len(w) != 1 || w[0].Permits != 2 {
			t.Errorf("the successor: %+v", w)
		}
		release(t, held)
		release(t, next(t, granted))
	})
}

// TestAGuardsEndIsFoundSoon: the end of a guarded transaction sends no notification. The waiter
// polls so often that it is late by a fraction of the transaction's duration. On a laden machine the
// statements themselves take long, so the transactions are longer in another round.
func TestAGuardsEndIsFoundSoon(t *testing.T) {
	t.Parallel()
	const rounds = 15
	f := newFixture(t)
	holder, waiter := f.open(), f.open()
	lateAfter := func(least time.Duration) time.Duration {
		var late []time.Duration
		for i := range rounds {
			name := fmt.Sprint(least, i)
			held := try(t, holder, name)
			got := f.waits(waiter, name)
			tx := begin(t, f)
			must(t, held.Guard(t.Context(), tx))
			release(t, held)
			rest(t, least+rand.N(least))
			must(t, tx.Commit(t.Context()))
			began := time.Now()
			l := next(t, got)
			late = append(late, time.Since(began))
			release(t, l)
		}
		slices.Sort(late)
		t.Logf("granted after the end of a transaction of %v or more: median %v, slowest %v", least, late[rounds/2], late[rounds-1])
		return late[rounds/2]
	}
	for least := 100 * time.Millisecond; lateAfter(least) > least*2/5; least *= 2 {
		if least > 100*time.Millisecond {
			t.Fatal("granted late after the end of a guarded transaction")
		}
	}
}

// slowLoss is a store that loses the answer to its next fast acquire, after a while, if it is armed.
type slowLoss struct {
	backend.Store
	armed atomic.Bool
}

func (s *slowLoss) AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	grants, err := s.Store.AcquireFast(ctx, batch)
	if s.armed.CompareAndSwap(true, false) {
		<-time.After(100 * time.Millisecond)
		return make([]leasetable.Grant, len(batch)), io.ErrUnexpectedEOF
	}
	return grants, err
}

// A call whose answer was lost, and which waits behind another one of its process, leaves no grant
// behind for which that one would wait.
func TestALostAnswerDoesNotBlockTheNextCall(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		loss := &slowLoss{}
		c := f.through(func(s backend.Store) backend.Store { loss.Store = s; return loss }).open()
		release(t, try(t, c, "n")) // now the name is one for the fast acquire
		loss.armed.Store(true)
		began := time.Now()
		first := async(t, c.Lock("n"))
		rest(t, time.Millisecond)
		second := async(t, c.Lock("n"))
		for range 2 {
			select {
			case l := <-first:
				release(t, l)
			case l := <-second:
				release(t, l)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("granted after %v", took)
		}
	})
}

// TestARenewalCostsItsWaiterNoAttempt: a waiter sleeps until the lease expires, and then until its next expiry if it
// was renewed. Otherwise there would be an attempt for each expiry, 600.
func TestARenewalCostsItsWaiterNoAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r, got := &recorder{}, make(chan *pglock.Lease, 1)
		held := try(t, f.open(), "n", pglock.WithTTL(time.Minute))
		c := f.open(pglock.WithObserver(r.hooks()))
		go func() { got <- acquire(t, c, "n") }()
		rest(t, 10*time.Hour)
		release(t, held)
		release(t, next(t, got))
		if e := await[observe.AcquireEvent](t, r, 1)[0]; e.Attempts > 100 {
			t.Errorf("%d attempts", e.Attempts)
		}
	})
}
