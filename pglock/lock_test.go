package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

func TestSemaphoreBadInput(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		s := c.Semaphore("s", 3)
		for what, l := range map[string]pglock.Lock{
			"no permits": c.Semaphore("s", 0), "negative": c.Semaphore("s", -1), "too many": c.Semaphore("s", pglock.MaxPermits+1),
			"no name": c.Semaphore("", 1), "NUL": c.Reader("a\x00b"), "weight 0": s.Weight(0), "weight -1": s.Weight(-1), "weight 4": s.Weight(4),
		} {
			_, err := l.Acquire(t.Context())
			fails(t, what, err, pglock.ErrInvalidOption)
		}
		_, err := s.Acquire(t.Context(), pglock.WithMinHold(time.Minute))
		fails(t, "WithMinHold", err, pglock.ErrInvalidOption)
		fails(t, "WithJoin", s.Do(t.Context(), func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()), pglock.ErrInvalidOption)
	})
}

// TestKindsDoNotMix, neither while the lock is held nor when it is free.
func TestKindsDoNotMix(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		kinds := map[string]func(name string) pglock.Lock{
			"lock":      c.Lock,
			"semaphore": func(name string) pglock.Lock { return c.Semaphore(name, 3) },
			"another":   func(name string) pglock.Lock { return c.Semaphore(name, 4) },
			"reader":    c.Reader,
			"several":   func(name string) pglock.Lock { return c.All(c.Lock("a"), c.Semaphore(name, 5)) },
		}
		found := map[string]string{"lock": "is a lock with one holder, not", "semaphore": "is a semaphore with 3 permits, not", "reader": "is a readers-writer lock, not"}
		for name, says := range found {
			refused := func(what string, err error) {
				t.Helper()
				var kind *pglock.KindError
				if !errors.Is(err, pglock.ErrKind) || !errors.As(err, &kind) || kind.Name != name ||
					!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s as %s: %v", name, what, err)
				}
			}
			l := held(t, kinds[name](name))
			for _, state := range []string{"held", "free"} {
				for what, as := range kinds {
					if what != name {
						refused(state+" "+what, second(as(name).Acquire(t.Context())))
						refused(state+" "+what, second(as(name).TryAcquire(t.Context())))
					}
				}
				if state == "held" {
					check(t, l.Err())
					release(t, l)
				}
			}
			if name != "semaphore" {
				refused("resize", c.Resize(t.Context(), name, 4))
			}
			release(t, held(t, kinds[name](name))) // the refused calls have changed nothing
		}
		fails(t, "a refused name has a row", second(c.Get(t.Context(), "a")), pglock.ErrNotFound)
		l := held(t, c.Reader("reader"))
		fails(t, "a lease with one holder joins a reader", c.TryDo(l.Context(), "reader", func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()), pglock.ErrKind)
		release(t, l)
	})
}

// lockCases are what users of other packages rely on, for every kind of lock that one caller holds
// alone. The origin is the suite that requires it: D is madelson/DistributedLock, Cu is Apache Curator,
// Co is HashiCorp Consul.
var lockCases = []struct {
	name, origin string
	test         func(f fake, lock func(*pglock.Client) pglock.Lock)
}{
	{"a held lock is busy until its release", "D TestBasic, Cu testSimple, testBasic, Co SemaphoreOneShot", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		a, b := lock(f.open()), lock(f.open())
		l := held(f.t, a)
		isBusy(f.t, "the same client", a)
		isBusy(f.t, "another client", b)
		release(f.t, l)
		canceled, cancel := context.WithCancel(f.t.Context())
		cancel()
		for what, ctx := range map[string]context.Context{"": f.t.Context(), "canceled": canceled, "the lease's own": nil} {
			l := held(f.t, a)
			if what == "the lease's own" {
				ctx = l.Context()
			}
			check(f.t, l.Err())
			check(f.t, l.Release(ctx))
			release(f.t, l)
			ends(f.t, "the end of the lease", l.Done())
			fails(f.t, "the cause", context.Cause(l.Context()), pglock.ErrReleased)
			release(f.t, held(f.t, b))
		}
	}},
	{"the time of a wait is bounded", "D TestSelfDeadlockWaitsOnSpecifiedTime, Cu testSimple2, Co SemaphoreOneShot", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l, other := held(f.t, lock(f.open())), lock(f.open())
		const wait = 150 * time.Millisecond
		var callers sync.WaitGroup
		for range 3 { // the head of the local queue, and those behind it
			callers.Go(func() {
				began := time.Now()
				_, err := other.Acquire(f.t.Context(), pglock.WithWait(wait))
				fails(f.t, "the caller", err, pglock.ErrTimeout, pglock.ErrNotAcquired)
				if took := time.Since(began); took < wait || took > 5*time.Second {
					f.t.Errorf("it took %v", took)
				}
			})
		}
		callers.Wait()
		release(f.t, l)
		f.empty("n")
	}},
	{"a waiter leaves when its context ends", "D TestSelfDeadlockWaitRespectsCancellation, TestMultipleConnectionsCannotTriggerSelfDeadlock", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l, other := held(f.t, lock(f.open())), lock(f.open())
		ctx, cancel := context.WithCancel(f.t.Context())
		ended := f.leaves(ctx, other, pglock.WithWait(time.Minute))
		cancel()
		fails(f.t, "", <-ended, context.Canceled, pglock.ErrNotAcquired)
		release(f.t, l)
		release(f.t, held(f.t, lock(f.open())))
	}},
	{"waiters of one process are served", "Cu testThreads, testReleaseInChunks, D TestSemaphoreParallelism, Co SemaphoreContend", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		var inside peak
		var wg sync.WaitGroup
		for _, c := range []*pglock.Client{f.open(), f.open()} {
			for range 8 {
				wg.Go(func() {
					for range 3 {
						check(f.t, lock(c).Do(f.t.Context(), func(context.Context, *pglock.Lease) error {
							inside.enter(1)
							defer inside.leave(1)
							return nil
						}))
					}
				})
			}
		}
		wg.Wait()
		if inside.most.Load() != 1 {
			f.t.Errorf("%d were inside", inside.most.Load())
		}
	}},
	{"Close releases", "Cu testClientClose", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		a := f.openUnclosed()
		l := held(f.t, lock(a))
		if err := a.Close(f.t.Context()); err != nil || !errors.Is(l.Err(), pglock.ErrClosed) {
			f.t.Fatalf("%v, the lease: %v", err, l.Err())
		}
		if _, err := lock(f.open()).TryAcquire(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	}},
	{"a dead holder is followed after its TTL", "P20, Cu testLockPath", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		dead, other := f.openUnclosed(), lock(f.open())
		for what, follow := range map[string]func(context.Context, ...pglock.LeaseOption) (*pglock.Lease, error){
			"Acquire": other.Acquire, "TryAcquire": other.TryAcquire,
		} {
			l := held(f.t, lock(dead), pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
			var second *pglock.Lease
			pgtest.Eventually(f.t, what+" follows", func() (granted bool) {
				var err error
				second, err = follow(f.t.Context())
				return err == nil
			})
			fails(f.t, "the first holder", l.Err(), pglock.ErrLost)
			grows(f.t, l, second)
			release(f.t, second)
		}
		_ = dead.Close(f.t.Context()) // its leases are lost
	}},
	{"a lost ticket is replaced", "Cu testNoOrphanedNodes", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l, got := held(f.t, lock(f.open())), f.waits(lock(f.open()))
		first := f.row("n").Waiters[0].Ticket
		f.Crash()
		rest(f.t, timing.RefreshEvery)
		if again := f.row("n").Waiters; len(again) != 1 || again[0].Ticket <= first {
			f.t.Errorf("the waiters are %+v, after ticket %d", again, first)
		}
		release(f.t, l)
		release(f.t, next(f.t, got))
		f.empty("n")
	}},
	{"a caller does not wait for itself", "D TestSelfDeadlockThrowsOnInfiniteWait, Cu testThatUpgradingIsDisallowed", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		c := f.open()
		l := held(f.t, lock(c))
		for what, acquire := range map[string]func(context.Context, ...pglock.LeaseOption) (*pglock.Lease, error){"Acquire": lock(c).Acquire, "TryAcquire": lock(c).TryAcquire} {
			var held *pglock.HeldError
			if _, err := acquire(l.Context()); !errors.As(err, &held) || held.Token != l.Token() || errors.Is(err, pglock.ErrNotAcquired) {
				f.t.Errorf("%s: %v", what, err)
			}
		}
		release(f.t, l)
		release(f.t, held(f.t, lock(c))) // the lease does not count any more
	}},
	{"invalid arguments are refused before the server is asked", "D TestReaderWriterLockBadArguments, TestCompositeArgumentValidation, Co SemaphoreBadLimit", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l := lock(f.open())
		for _, opt := range []pglock.LeaseOption{pglock.WithWait(-time.Second), pglock.WithTTL(time.Nanosecond), pglock.WithHolder("")} {
			_, err := l.Acquire(f.t.Context(), opt)
			_, tried := l.TryAcquire(f.t.Context(), opt)
			if !errors.Is(err, pglock.ErrInvalidOption) || !errors.Is(tried, pglock.ErrInvalidOption) {
				f.t.Errorf("%v, %v", err, tried)
			}
		}
		fails(f.t, "a row", second(f.open().Get(f.t.Context(), "n")), pglock.ErrNotFound)
	}},
	{"the holder is shown", "Cu testGetParticipantNodes, testSetNodeData", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		c := f.open(pglock.WithHolder("H"))
		labels := map[string]string{"k": "v"}
		opt := pglock.WithLabels(labels)
		labels["k"] = "changed"
		l := held(f.t, lock(c), opt)
		k, err := f.open().Get(f.t.Context(), "n")
		holder, token, stored := k.Holder, k.Token, k.Labels
		if len(k.Grants) == 1 {
			holder, token, stored = k.Grants[0].Holder, k.Grants[0].Token, k.Grants[0].Labels
		}
		if err != nil || !k.Held() || holder != "H" || token != l.Token() || stored["k"] != "v" {
			f.t.Errorf("%+v, %v", k, err)
		}
		release(f.t, l)
	}},
	{"waiters are shown, and served in their order", "Cu testGetParticipantNodes, testOrdering", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open()))
		var queue []<-chan *pglock.Lease
		for range 3 { // each is a process of its own: a client is one waiter
			c := f.open()
			queue = append(queue, f.waits(lock(c)))
		}
		if k, err := f.open().Get(f.t.Context(), "n"); err != nil || len(k.Waiters) != len(queue) {
			f.t.Errorf("%d waiters, %v", len(k.Waiters), err)
		}
		for _, got := range queue {
			release(f.t, l)
			l = next(f.t, got)
		}
		release(f.t, l)
	}},
	{"acquires go on after an outage", "Cu testAcquireAfterLostServer", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		proxy, far := f.proxied()
		l := lock(far.open())
		proxy.Refuse(true)
		got := async(f.t, l)
		rest(f.t, timing.OutagePatience/2)
		f.still(got)
		proxy.Refuse(false)
		release(f.t, next(f.t, got))
	}},
	{"a lease survives a short outage, and not a long one", "P11, Co SemaphoreMonitorRetry", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		const ttl = 5 * time.Second
		proxy, far := f.proxied()
		l := held(f.t, lock(far.open(pglock.WithTTL(ttl))))
		for range 2 {
			proxy.Refuse(true)
			rest(f.t, ttl*2/5)
			proxy.Refuse(false)
			rest(f.t, ttl*2/5)
		}
		check(f.t, l.Err())
		proxy.Refuse(true)
		rest(f.t, ttl)
		fails(f.t, "after a long outage", l.Err(), pglock.ErrLost)
	}},
	{"a lease is renewed, extended, labeled and asked for", "", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(6*time.Second))))
		first := l.Deadline()
		rest(f.t, 5*time.Second)
		if !l.Deadline().After(first) {
			f.t.Error("it was not renewed")
		}
		check(f.t, l.Extend(f.t.Context(), time.Minute))
		if left := time.Until(l.Deadline()); left < 50*time.Second {
			f.t.Errorf("%v are left of a minute", left)
		}
		err := l.SetLabels(f.t.Context(), map[string]string{"k": "v"})
		labels := !errors.Is(err, fencing.ErrShared)
		if labels {
			check(f.t, err)
		}
		for _, name := range l.Names() {
			if got := f.row(name).Labels["k"]; (got == "v") != labels {
				f.t.Errorf("%q has the label %q", name, got)
			}
		}
		requested := l.ReleaseRequested()
		must(f.t, f.open().RequestRelease(f.t.Context(), "n", l.Token(), "a deployment"))
		ends(f.t, "the request", requested)
		if l.ReleaseReason() != "a deployment" || l.Err() != nil {
			f.t.Errorf("the reason is %q, the lease %v", l.ReleaseReason(), l.Err())
		}
		release(f.t, l)
	}},
	{"a caller that leaves at any moment leaves nothing", "I9", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		c, other := lock(f.slow().open(pglock.WithTTL(time.Hour))), lock(f.open())
		for _, free := range []bool{true, false} {
			l := held(f.t, other)
			if free {
				release(f.t, l)
			}
			for i := range 25 {
				ctx, cancel := context.WithTimeout(f.t.Context(), time.Duration(i)*roundTrip/4)
				if l, err := c.Acquire(ctx); err == nil {
					release(f.t, l)
				} else if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
					f.t.Error(err)
				}
				cancel()
			}
			release(f.t, l)
			rest(f.t, time.Second)
			f.empty("n", "m")
		}
		release(f.t, held(f.t, c))
	}},
	{"a grant whose answer is lost is found, or revoked when its caller has left", "P14, I9", func(f fake, lock func(*pglock.Client) pglock.Lock) {
		proxy, far := f.proxied()
		c := lock(far.open(pglock.WithTTL(time.Hour)))
		for _, leaves := range []bool{false, true} {
			release(f.t, held(f.t, c))
			proxy.DropRepliesIf(func() bool { return f.row("n").Held() })
			ctx, cancel := context.WithCancel(f.t.Context())
			var l *pglock.Lease
			ended := make(chan error, 1)
			go func() { var err error; l, err = c.Acquire(ctx); ended <- err }()
			synctest.Wait()
			granted := f.row("n")
			if !granted.Held() {
				f.t.Errorf("control: %+v", granted)
			}
			if leaves {
				cancel()
				fails(f.t, "a caller that leaves", <-ended, context.Canceled)
			}
			proxy.Heal()
			proxy.Sever()
			if !leaves {
				must(f.t, <-ended)
				if len(granted.Grants) == 0 && l.Token() != granted.Token {
					f.t.Errorf("the lease has token %d, the table %d", l.Token(), granted.Token)
				}
				release(f.t, l)
			}
			rest(f.t, time.Second)
			f.empty("n", "m")
			cancel()
		}
	}},
}

// TestLockCases runs the cases on every kind.
func TestLockCases(t *testing.T) {
	t.Parallel()
	for _, c := range lockCases {
		for kind, lock := range kinds {
			bubbles(t, fmt.Sprintf("%s/%s", c.name, kind), func(_ *testing.T, f fake) { c.test(f, lock) })
		}
	}
}

// sharedCases are those of locks that several callers hold at the same time, and of several names.
var sharedCases = []struct {
	name, origin string
	test         func(f fake, c *pglock.Client)
}{
	{"a semaphore has its permits and no more", "D TestMaxCount, TestDrain, TestHighTicketCount", func(f fake, c *pglock.Client) {
		s, other := c.Semaphore("n", 4), f.open().Semaphore("n", 4)
		var all []*pglock.Lease
		for range 4 {
			all = append(all, held(f.t, s))
		}
		isBusy(f.t, "no permit", other)
		k, err := c.Get(f.t.Context(), "n")
		if err != nil || k.Kind != inspect.Semaphore || k.Permits != 4 || k.InUse() != 4 || len(k.Grants) != 4 {
			f.t.Errorf("%+v, %v", k, err)
		}
		release(f.t, all[0])
		all[0] = held(f.t, other)
		for _, l := range all {
			release(f.t, l)
		}
		release(f.t, held(f.t, c.Semaphore("s"+strings.Repeat("o", 490), pglock.MaxPermits)))
	}},
	{"all permits are used, and not more", "D TestConcurrencyHandling, Cu testMaxPerSession, testRelease1AtATime", func(f fake, _ *pglock.Client) {
		const limit = 7
		var inside peak
		full := make(chan struct{})
		var once sync.Once
		var wg sync.WaitGroup
		for i := range 12 {
			s, weight := f.open().Semaphore("n", limit), 1
			if i >= limit {
				weight = 1 + rand.N(limit)
			}
			wg.Go(func() {
				if i >= limit {
					<-full
				}
				check(f.t, s.Weight(weight).Do(f.t.Context(), func(context.Context, *pglock.Lease) error {
					inside.enter(weight)
					defer inside.leave(weight)
					if inside.now.Load() >= limit {
						once.Do(func() { close(full) })
					}
					<-full
					return nil
				}))
			})
		}
		wg.Wait()
		if inside.most.Load() != limit {
			f.t.Errorf("at most %d permits of %d were used", inside.most.Load(), limit)
		}
	}},
	{"nested permits, while they suffice", "D TestSelfDeadlockThrowsOnInfiniteWait", func(f fake, c *pglock.Client) {
		s := c.Semaphore("n", 2)
		first := held(f.t, s)
		second, err := s.Acquire(first.Context())
		must(f.t, err)
		ctx, cancel := second.WithContext(second.Context())
		defer cancel()
		if _, err = s.Acquire(ctx); !errors.Is(err, pglock.ErrHeldByCaller) || !strings.Contains(err.Error(), "2 of its permits") {
			f.t.Errorf("%v", err)
		}
		release(f.t, first) // it does not count any more
		third, err := s.Acquire(ctx)
		must(f.t, err)
		release(f.t, second)
		release(f.t, third)
	}},
	{"a waiter learns that the number of permits has changed", "Cu testThreadedLeaseIncrease", func(f fake, c *pglock.Client) {
		l, failed := held(f.t, c.Semaphore("n", 1)), make(chan error, 1)
		other := f.open()
		go func() { _, err := other.Semaphore("n", 1).Acquire(f.t.Context()); failed <- err }()
		synctest.Wait()
		check(f.t, c.Resize(f.t.Context(), "n", 2))
		if err := <-failed; !errors.Is(err, pglock.ErrKind) {
			f.t.Errorf("%v", err)
		}
		release(f.t, held(f.t, c.Semaphore("n", 2)))
		release(f.t, l)
	}},
	{"many readers or one writer", "D TestMultipleReadersSingleWriter, Cu testContendingDowngrading", func(f fake, c *pglock.Client) {
		one, two := held(f.t, c.Reader("n")), held(f.t, f.open().Reader("n"))
		isBusy(f.t, "a writer beside readers", c.Writer("n"))
		other := f.open()
		writer := f.waits(other.Writer("n"))
		release(f.t, one)
		f.still(writer)
		release(f.t, two)
		w := next(f.t, writer)
		isBusy(f.t, "a reader beside a writer", c.Reader("n"))
		isBusy(f.t, "a second writer", c.Writer("n"))
		second := f.waits(c.Writer("n"))
		downgrade(f.t, w)
		f.still(second)
		release(f.t, w)
		release(f.t, next(f.t, second))
	}},
	{"readers do not pass a waiting writer", "D TestWriterTrumpsReader, Cu testWriterAgainstConstantReaders, testOrdering", func(f fake, c *pglock.Client) {
		first := held(f.t, c.Reader("n"))
		var clients [4]*pglock.Client
		for i := range clients {
			clients[i] = f.open()
		}
		writer := f.waits(clients[0].Writer("n"))
		isBusy(f.t, "a reader behind a waiting writer", c.Reader("n"))
		readers := []<-chan *pglock.Lease{f.waits(clients[1].Reader("n")), f.waits(clients[2].Reader("n"))}
		last := f.waits(clients[3].Writer("n"))
		release(f.t, first)
		w := next(f.t, writer)
		f.still(readers[0])
		release(f.t, w)
		a, b := next(f.t, readers[0]), next(f.t, readers[1]) // together
		f.still(last)
		release(f.t, a)
		release(f.t, b)
		release(f.t, next(f.t, last))
	}},
	{"the only reader becomes the writer", "D TestUpgradeToWriteLock, TestUpgradeableHandleDisposal, TestUpgradeableHandleMultipleUpgrades", func(f fake, c *pglock.Client) {
		other, r := held(f.t, f.open().Reader("n")), held(f.t, c.Reader("n"))
		if _, err := r.TryUpgrade(f.t.Context()); !errors.Is(err, pglock.ErrNotAcquired) || r.Err() != nil {
			f.t.Errorf("beside a reader: %v, %v", err, r.Err())
		}
		release(f.t, other)
		w, err := r.TryUpgrade(f.t.Context())
		if err != nil || w.Token() <= r.Token() || !errors.Is(r.Err(), pglock.ErrReleased) {
			f.t.Fatalf("%v, the reader: %v", err, r.Err())
		}
		isBusy(f.t, "a reader", f.open().Reader("n"))
		fails(f.t, "a writer", second(w.TryUpgrade(f.t.Context())), pglock.ErrHeldByCaller)
		release(f.t, w)
		release(f.t, r)
		fails(f.t, "after the end", second(r.TryUpgrade(f.t.Context())), pglock.ErrReleased)
	}},
	{"renewals do not take an upgrade for a loss", "D TestCanUpgradeHandleWhileMonitoring", func(f fake, _ *pglock.Client) {
		c := f.open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(10*time.Millisecond)) // renewals all the time
		w := held(f.t, c.Writer("n"))
		for range 10 {
			downgrade(f.t, w)
			r := w
			var err error
			if w, err = r.TryUpgrade(f.t.Context()); err != nil || errors.Is(r.Err(), pglock.ErrLost) {
				f.t.Fatalf("%v, the reader: %v", err, r.Err())
			}
			rest(f.t, 15*time.Millisecond)
		}
		f.Expire("n", 0)
		ends(f.t, "the loss", w.Done())
	}},
	{"of several names one is in the way", "D TestCompositePartialAcquisitionFailure, TestCompositeAcquireThrowsOnTimeout, Cu testSomeLocksLock", func(f fake, c *pglock.Client) {
		other := f.open()
		both := other.All(other.Lock("n"), other.Semaphore("m", 3).Weight(2), other.Lock("o"))
		release(f.t, held(f.t, both))
		for name, one := range map[string]pglock.Lock{"n": c.Lock("n"), "m": c.Semaphore("m", 3).Weight(2), "o": c.Lock("o")} {
			holder := held(f.t, one)
			_, err := both.TryAcquire(f.t.Context())
			_ = busyName(f.t, err, name) // fails the test itself
			_, err = both.Acquire(f.t.Context(), pglock.WithWait(50*time.Millisecond))
			fails(f.t, "a bounded wait", err, pglock.ErrTimeout)
			for free, lock := range map[string]pglock.Lock{"n": c.Lock("n"), "m": c.Semaphore("m", 3), "o": c.Lock("o")} {
				if free != name {
					release(f.t, held(f.t, lock))
				}
			}
			release(f.t, holder)
		}
	}},
	{"a waiter for several is not overtaken", "", func(f fake, c *pglock.Client) {
		for what, test := range map[string]struct {
			opts                []pglock.Option
			blocker, large, few func(c *pglock.Client) pglock.Lock
		}{
			"permits": {
				blocker: func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 3) },
				large:   func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 3).Weight(3) },
				few:     func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 3) },
			},
			"names": {
				blocker: func(c *pglock.Client) pglock.Lock { return c.Lock("a") },
				large:   func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("a"), c.Lock("b")) },
				few:     func(c *pglock.Client) pglock.Lock { return c.Lock("b") },
			},
			"names, polling": {
				opts:    []pglock.Option{pglock.WithPollOnly()},
				blocker: func(c *pglock.Client) pglock.Lock { return c.Lock("c") },
				large:   func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("c"), c.Lock("d")) },
				few:     func(c *pglock.Client) pglock.Lock { return c.Lock("d") },
			},
			"kinds": {
				blocker: func(c *pglock.Client) pglock.Lock { return c.Semaphore("e", 3).Weight(2) },
				large:   func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("f"), c.Semaphore("e", 3).Weight(2)) },
				few:     func(c *pglock.Client) pglock.Lock { return c.Lock("f") },
			},
		} {
			holder := held(f.t, test.blocker(c))
			large := f.waits(test.large(f.open(test.opts...)))
			isBusy(f.t, what+": a newcomer", test.few(c))
			few := f.waits(test.few(f.open(test.opts...)))
			rest(f.t, 10*timing.HeadGrace) // for which there is room for few
			f.still(large)
			f.still(few)
			release(f.t, holder)
			l := next(f.t, large)
			f.still(few)
			if l.Token() <= holder.Token() {
				f.t.Errorf("%s: tokens %d and %d don't grow", what, holder.Token(), l.Token())
			}
			release(f.t, l)
			release(f.t, next(f.t, few))
		}
	}},
	{"a release lets all in that fit", "", func(f fake, c *pglock.Client) {
		const n = 4
		all := held(f.t, c.Semaphore("n", n).Weight(n))
		var waiting []<-chan *pglock.Lease
		for range n {
			waiting = append(waiting, f.waits(f.open().Semaphore("n", n)))
		}
		release(f.t, all)
		for i, got := range waiting {
			if l := next(f.t, got); i == n-1 { // all of them hold at the same time
				isBusy(f.t, "a permit too many", c.Semaphore("n", n))
				release(f.t, l)
			} else {
				defer release(f.t, l)
			}
		}
	}},
	{"an upgrade overtakes a waiting writer", "", func(f fake, c *pglock.Client) {
		r := held(f.t, c.Reader("n"))
		waiting := f.waits(f.open().Writer("n"))
		w, err := r.TryUpgrade(f.t.Context())
		must(f.t, err)
		f.still(waiting)
		release(f.t, w)
		l := next(f.t, waiting)
		if l.Token() <= w.Token() {
			f.t.Errorf("token %d of the waiting writer is not above %d", l.Token(), w.Token())
		}
		release(f.t, l)
	}},
	{"a lost name does not keep the others", "Cu testSomeReleasesFail, D TestCompositeHandleLostToken", func(f fake, c *pglock.Client) {
		l := held(f.t, c.All(c.Lock("n"), c.Lock("m"), c.Lock("o")))
		must(f.t, f.open().Revoke(f.t.Context(), "m", l.Token(), "test"))
		fails(f.t, "a guard of the rest", l.Guard(f.t.Context(), f.begin()), fencing.ErrStale)
		isBusy(f.t, "a name that is not lost", c.Lock("n"))
		err := l.Release(f.t.Context())
		var lost *pglock.LostError
		if !errors.As(err, &lost) || lost.Name != "m" {
			f.t.Errorf("Release: %v", err)
		}
		for _, name := range []string{"n", "m", "o"} {
			if k, err := c.Get(f.t.Context(), name); err != nil || k.Held() {
				f.t.Errorf("%q is held: %t, %v", name, k.Held(), err)
			}
		}
	}},
}

func TestSharedLockCases(t *testing.T) {
	t.Parallel()
	for _, c := range sharedCases {
		bubbles(t, c.name, func(_ *testing.T, f fake) { c.test(f, f.open()) })
	}
}

// badUpgrades is a store whose first upgrade is lost on its way, or its answer is late.
type badUpgrades struct {
	backend.Store
	late, done bool
	delay      time.Duration // a part of the TTL of requests
}

func (s *badUpgrades) Upgrade(ctx context.Context, reader fencing.Token, r *leasetable.Request) (g leasetable.Grant, err error) {
	switch first := !s.done; {
	case first && s.late:
		g, err = s.Store.Upgrade(ctx, reader, r)
		<-time.After(r.TTL - s.delay)
	case first:
		err = io.ErrUnexpectedEOF
	default:
		g, err = s.Store.Upgrade(ctx, reader, r)
	}
	s.done = true
	return g, err
}

// A reader whose lease ends with the lost or late answer to its upgrade leaves no grant, for which
// writers would wait.
func TestABadUpgradeLeavesNoGrant(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		bubbles(t, fmt.Sprint("late ", late), func(t *testing.T, f fake) {
			c := f.through(func(s backend.Store) backend.Store { return &badUpgrades{Store: s, late: late} }).open(pglock.WithRenewEvery(0))
			mine := <-async(t, c.Reader("rw"))
			must(t, mine.Extend(t.Context(), time.Hour))
			var other *pglock.Lease // a repetition after the lost one must find the lock held
			if !late {
				other = <-async(t, f.open().Reader("rw"))
			}
			fails(t, "an upgrade", second(mine.TryUpgrade(t.Context())), pglock.ErrLost)
			if !late {
				release(t, other)
			}
			began := time.Now()
			release(t, <-async(t, f.open().Writer("rw")))
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the writer has waited for %v", took)
			}
		})
	}
}

// TestABadUpgradeKeepsTheLockDelay: with a lock delay, others wait after a lease that its upgrade
// lost, too.
func TestABadUpgradeKeepsTheLockDelay(t *testing.T) {
	t.Parallel()
	const delay = time.Minute
	for _, late := range []bool{false, true} {
		bubbles(t, fmt.Sprint("late ", late), func(t *testing.T, f fake) {
			c := f.through(func(s backend.Store) backend.Store { return &badUpgrades{Store: s, late: late, delay: delay} }).
				open(pglock.WithRenewEvery(0), pglock.WithLockDelay(delay))
			mine := <-async(t, c.Reader("rw"))
			other := <-async(t, f.open().Reader("rw")) // a repetition after the lost answer finds the lock held
			if late {
				release(t, other)
			}
			fails(t, "an upgrade", second(mine.TryUpgrade(t.Context())), pglock.ErrLost)
			lost := time.Now()
			if !late {
				release(t, other)
			}
			release(t, <-async(t, f.open().Writer("rw")))
			if waited := time.Since(lost); waited < delay {
				t.Errorf("the next holder has waited for %v", waited)
			}
		})
	}
}
