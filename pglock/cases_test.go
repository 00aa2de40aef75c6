package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// kinds are the kinds of locks that one caller holds alone. Their names contain "n", or are "n" and "m".
var kinds = map[string]func(c *pglock.Client) pglock.Lock{
	"one holder":    func(c *pglock.Client) pglock.Lock { return c.Lock("n") },
	"semaphore":     func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 1) },
	"weighted":      func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 5).Weight(3) },
	"writer":        func(c *pglock.Client) pglock.Lock { return c.Writer("n") },
	"several names": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("n"), c.Lock("m")) },
}

// held acquires a lock that is free for the caller, who may have to wait.
func held(t *testing.T, l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	lease, err := l.Acquire(ctx, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", l.Name(), err)
	}
	return lease
}

// isBusy fails the test unless a try finds the lock held.
func isBusy(t *testing.T, what string, l pglock.Lock) {
	t.Helper()
	var busy *pglock.BusyError
	if _, err := l.TryAcquire(t.Context()); !errors.As(err, &busy) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatalf("%s: TryAcquire(%q): %v, want a *BusyError", what, l.Name(), err)
	}
}

// waits acquires the lock in the background, and returns when the caller is in the queue.
func waits(f fixture, l pglock.Lock) <-chan *pglock.Lease {
	f.t.Helper()
	const sql = "SELECT count(*) FROM pglock.lock_waiters WHERE ticket > 0 AND expires_at > clock_timestamp() AND name = 'n'"
	before, got := value[int](f, sql), make(chan *pglock.Lease, 1)
	go func() {
		lease, err := l.Acquire(f.t.Context())
		check(f.t, err)
		got <- lease
	}()
	pgtest.Eventually(f.t, 20*time.Second, "the next waiter", func() bool { return value[int](f, sql) > before })
	return got
}

// next returns the lease of a waiter.
func next(t *testing.T, got <-chan *pglock.Lease) *pglock.Lease {
	t.Helper()
	select {
	case l := <-got:
		return l
	case <-time.After(40 * time.Second):
		t.Fatal("the waiter is not granted the lock")
		return nil
	}
}

// still fails the test if the waiter has been granted the lock. A look at the row comes first: by then a
// grant by the statement before has returned.
func still(f fixture, got <-chan *pglock.Lease) {
	f.t.Helper()
	if _, err := f.open().Get(f.t.Context(), "n"); err != nil {
		f.t.Fatal(err)
	}
	select {
	case <-got:
		f.t.Fatal("the waiter was granted the lock")
	default:
	}
}

// peak counts the permits inside, and remembers the highest number.
type peak struct{ now, most atomic.Int64 }

func (p *peak) enter(n int) {
	now := p.now.Add(int64(n))
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
}

func (p *peak) leave(n int) { p.now.Add(int64(-n)) }

// lockCases are what users of other packages rely on, for every kind of lock that one caller holds
// alone. The origin is the suite that requires it: D is madelson/DistributedLock, Cu is Apache Curator,
// Co is HashiCorp Consul.
var lockCases = []struct {
	name, origin string
	test         func(f fixture, lock func(*pglock.Client) pglock.Lock)
}{
	{"a held lock is busy until its release", "D TestBasic, Cu testSimple, testBasic, Co SemaphoreOneShot", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		a, b := lock(f.open()), lock(f.open())
		l := held(f.t, a)
		isBusy(f.t, "the same client", a)
		isBusy(f.t, "another client", b)
		if err := l.Err(); err != nil {
			f.t.Errorf("held: %v", err)
		}
		release(f.t, l)
		release(f.t, l)
		within(f.t, time.Second, "the end of the lease", l.Done())
		release(f.t, held(f.t, b))
	}},
	{"the time of a wait is bounded", "D TestSelfDeadlockWaitsOnSpecifiedTime, Cu testSimple2, Co SemaphoreOneShot", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open()))
		began := time.Now()
		_, err := lock(f.open()).Acquire(f.t.Context(), pglock.WithWait(150*time.Millisecond))
		if took := time.Since(began); !errors.Is(err, pglock.ErrTimeout) || !errors.Is(err, pglock.ErrNotAcquired) || took < 150*time.Millisecond {
			f.t.Errorf("after %v: %v", took, err)
		}
		release(f.t, l)
	}},
	{"a waiter leaves when its context ends", "D TestSelfDeadlockWaitRespectsCancellation, TestMultipleConnectionsCannotTriggerSelfDeadlock", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l, other := held(f.t, lock(f.open())), lock(f.open())
		ctx, cancel := context.WithCancel(f.t.Context())
		ended := make(chan error, 1)
		go func() { _, err := other.Acquire(ctx, pglock.WithWait(time.Minute)); ended <- err }()
		f.t.Cleanup(cancel)
		pgtest.Eventually(f.t, 20*time.Second, "the wait", func() bool { return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") > 0 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, pglock.ErrNotAcquired) {
			f.t.Errorf("%v", err)
		}
		release(f.t, l)
		release(f.t, held(f.t, lock(f.open())))
	}},
	{"waiters of one process are served", "Cu testThreads, testReleaseInChunks, D TestSemaphoreParallelism, Co SemaphoreContend", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
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
	{"Close releases", "Cu testClientClose", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		a := f.openUnclosed()
		l := held(f.t, lock(a))
		if err := a.Close(f.t.Context()); err != nil || !errors.Is(l.Err(), pglock.ErrClosed) {
			f.t.Fatalf("%v, the lease: %v", err, l.Err())
		}
		if _, err := lock(f.open()).TryAcquire(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	}},
	{"a dead holder is followed after its TTL", "Cu testLockPath", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		a := f.openUnclosed()
		l := held(f.t, lock(a), pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
		second := held(f.t, lock(f.open()))
		if !errors.Is(l.Err(), pglock.ErrLost) {
			f.t.Errorf("the first holder has %v when the second one comes in", l.Err())
		}
		if second.Token() <= l.Token() {
			f.t.Errorf("tokens %d and %d don't grow", l.Token(), second.Token())
		}
		release(f.t, second)
		_ = a.Close(f.t.Context()) // its lease is lost
	}},
	{"Revoke ends a grant", "Co SemaphoreForceInvalidate, D TestCompositeHandleLostToken", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(2*time.Second)))) // it learns of it with its next renewal
		if err := f.open().Revoke(f.t.Context(), "n", l.Token(), "nuked"); err != nil {
			f.t.Fatal(err)
		}
		within(f.t, 20*time.Second, "the loss", l.Done())
		var lost *pglock.LostError
		if err := l.Err(); !errors.As(err, &lost) || lost.Name != "n" || !errors.Is(err, pglock.ErrRevoked) || !strings.Contains(err.Error(), "nuked") {
			f.t.Errorf("%v", err)
		}
		_ = l.Release(f.t.Context()) // it was lost
		release(f.t, held(f.t, lock(f.open())))
	}},
	{"a lease without its row is lost", "Co SemaphoreDeleteKey, Cu testSomeReleasesFail", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(time.Second))))
		f.sql("DELETE FROM pglock.lock_permits")
		f.sql("DELETE FROM pglock.distributed_locks WHERE name = 'n'")
		within(f.t, 10*time.Second, "the loss", l.Done())
		if err := l.Err(); !errors.Is(err, pglock.ErrLost) {
			f.t.Errorf("%v", err)
		}
		_ = l.Release(f.t.Context())
		release(f.t, held(f.t, lock(f.open()), pglock.WithWait(20*time.Second)))
	}},
	{"a lost queue is rebuilt", "Cu testNoOrphanedNodes", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c := f.open()
		l, got := held(f.t, lock(f.open())), waits(f, lock(c))
		f.sql("DELETE FROM pglock.lock_waiters")
		release(f.t, l)
		release(f.t, next(f.t, got))
		if n := value[int](f, "SELECT count(*) FROM pglock.lock_permits") + value[int](f, "SELECT coalesce(sum(in_use), 0)::int FROM pglock.distributed_locks"); n != 0 {
			f.t.Errorf("%d permits are left", n)
		}
	}},
	{"a caller does not wait for itself", "D TestSelfDeadlockThrowsOnInfiniteWait, Cu testThatUpgradingIsDisallowed", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
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
	{"invalid arguments are refused before the server is asked", "D TestReaderWriterLockBadArguments, TestCompositeArgumentValidation, Co SemaphoreBadLimit", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := lock(f.open())
		for _, opt := range []pglock.LeaseOption{pglock.WithWait(-time.Second), pglock.WithTTL(time.Nanosecond), pglock.WithHolder("")} {
			_, err := l.Acquire(f.t.Context(), opt)
			_, tried := l.TryAcquire(f.t.Context(), opt)
			if !errors.Is(err, pglock.ErrInvalidOption) || !errors.Is(tried, pglock.ErrInvalidOption) {
				f.t.Errorf("%v, %v", err, tried)
			}
		}
		if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks"); n != 0 {
			f.t.Errorf("%d rows", n)
		}
	}},
	{"a name has one kind", "Co SemaphoreConflict, SemaphoreBadLimit, D TestSameNameDifferentCounts", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c := f.open()
		l := held(f.t, lock(c))
		for _, other := range []pglock.Lock{c.Semaphore("n", 7), c.Semaphore("n", 8)} { // one of them at least is another kind
			var kind *pglock.KindError
			if _, err := other.TryAcquire(f.t.Context()); !errors.As(err, &kind) || !errors.Is(err, pglock.ErrKind) || kind.Name != "n" {
				f.t.Errorf("%v", err)
			}
		}
		if err := l.Err(); err != nil {
			f.t.Error(err)
		}
		release(f.t, l)
	}},
	{"the holder is shown", "Cu testGetParticipantNodes, testSetNodeData", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
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
		if n := value[int](f, "SELECT count(*) FROM pglock.locks_held WHERE name = 'n' AND holder = 'H' AND remaining > '0'"); n != 1 {
			f.t.Errorf("%d rows in locks_held", n)
		}
		release(f.t, l)
	}},
	{"waiters are shown, and served in their order", "Cu testGetParticipantNodes, testOrdering", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open()))
		var queue []<-chan *pglock.Lease
		for range 3 { // each is a process of its own: a client is one waiter
			c := f.open()
			queue = append(queue, waits(f, lock(c)))
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
	{"an idle name is pruned, one in use is not", "Cu testChildReaperCleansUpLockNodes, Co SemaphoreDestroy", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c := f.open(pglock.WithRetention(0))
		prune := func() int64 {
			f.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '1 hour', ended_at = clock_timestamp() - interval '1 hour'")
			n, err := c.Prune(f.t.Context(), time.Minute)
			check(f.t, err)
			return n
		}
		l := held(f.t, lock(c))
		if n := prune(); n != 0 {
			f.t.Errorf("%d names in use were pruned", n)
		}
		release(f.t, l)
		if n, want := prune(), int64(len(l.Names())); n != want {
			f.t.Errorf("%d idle names were pruned, want %d", n, want)
		}
	}},
	{"acquires go on after an outage", "Cu testAcquireAfterLostServer", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		proxy := faultproxy.New(f.t, address(f.pool.Config().ConnConfig))
		l := lock(f.through(proxy.URL(pgtest.URL(f.t))).open())
		release(f.t, held(f.t, l))
		proxy.Refuse(true)
		proxy.Sever()
		before := proxy.Stats().Accepted
		got := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(f.t.Context())
			if err == nil {
				err = lease.Release(f.t.Context())
			}
			got <- err
		}()
		pgtest.Eventually(f.t, 20*time.Second, "an attempt to connect", func() bool { return proxy.Stats().Accepted > before })
		proxy.Refuse(false)
		if err := <-got; err != nil {
			f.t.Error(err)
		}
	}},
	{"a lease survives a short outage, and not a long one", "Co SemaphoreMonitorRetry", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		proxy := faultproxy.New(f.t, address(f.pool.Config().ConnConfig))
		l := held(f.t, lock(f.through(proxy.URL(pgtest.URL(f.t))).open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(100*time.Millisecond))))
		renewed := func() bool { return time.Until(l.Deadline()) > 4300*time.Millisecond }
		for range 2 {
			proxy.Refuse(true)
			proxy.Sever()
			pgtest.Eventually(f.t, 4*time.Second, "an outage", func() bool { return !renewed() })
			proxy.Refuse(false)
			pgtest.Eventually(f.t, 20*time.Second, "a renewal", func() bool { return renewed() || l.Err() != nil })
		}
		if err := l.Err(); err != nil {
			f.t.Fatalf("lost after short outages: %v", err)
		}
		proxy.Refuse(true)
		proxy.Sever()
		within(f.t, 20*time.Second, "the loss", l.Done())
		proxy.Refuse(false)
	}},
}

// TestLockCases runs the cases on every kind.
func TestLockCases(t *testing.T) {
	t.Parallel()
	for _, c := range lockCases {
		for kind, lock := range kinds {
			t.Run(fmt.Sprintf("%s/%s", c.name, kind), func(t *testing.T) {
				t.Parallel()
				c.test(newFixture(t), lock)
			})
		}
	}
}

// sharedCases are those of locks that several callers hold at the same time, and of several names.
var sharedCases = []struct {
	name, origin string
	test         func(f fixture, c *pglock.Client)
}{
	{"a semaphore has its permits and no more", "D TestMaxCount, TestDrain, TestHighTicketCount", func(f fixture, c *pglock.Client) {
		s, other := c.Semaphore("n", 4), f.open().Semaphore("n", 4)
		var all []*pglock.Lease
		for range 4 {
			all = append(all, held(f.t, s))
		}
		isBusy(f.t, "no permit", other)
		k, err := c.Get(f.t.Context(), "n")
		if err != nil || k.Kind != pglock.KindSemaphore || k.Permits != 4 || k.InUse() != 4 || len(k.Grants) != 4 {
			f.t.Errorf("%+v, %v", k, err)
		}
		release(f.t, all[0])
		all[0] = held(f.t, other)
		for _, l := range all {
			release(f.t, l)
		}
		release(f.t, held(f.t, c.Semaphore("s"+strings.Repeat("o", 490), pglock.MaxPermits)))
	}},
	{"all permits are used, and not more", "D TestConcurrencyHandling, Cu testMaxPerSession, testRelease1AtATime", func(f fixture, _ *pglock.Client) {
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
	{"nested permits, while they suffice", "D TestSelfDeadlockThrowsOnInfiniteWait", func(f fixture, c *pglock.Client) {
		s := c.Semaphore("n", 2)
		first := held(f.t, s)
		second, err := s.Acquire(first.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		ctx, cancel := second.WithContext(second.Context())
		defer cancel()
		if _, err = s.Acquire(ctx); !errors.Is(err, pglock.ErrHeldByCaller) || !strings.Contains(err.Error(), "2 of its permits") {
			f.t.Errorf("%v", err)
		}
		release(f.t, first) // it does not count any more
		third, err := s.Acquire(ctx)
		if err != nil {
			f.t.Fatal(err)
		}
		release(f.t, second)
		release(f.t, third)
	}},
	{"a waiter learns that the number of permits has changed", "Cu testThreadedLeaseIncrease", func(f fixture, c *pglock.Client) {
		l, failed := held(f.t, c.Semaphore("n", 1)), make(chan error, 1)
		other := f.open()
		go func() { _, err := other.Semaphore("n", 1).Acquire(f.t.Context()); failed <- err }()
		pgtest.Eventually(f.t, 20*time.Second, "the wait", func() bool { return pglock.HeadWaits(other, "n") })
		check(f.t, c.Resize(f.t.Context(), "n", 2))
		if err := <-failed; !errors.Is(err, pglock.ErrKind) {
			f.t.Errorf("%v", err)
		}
		release(f.t, held(f.t, c.Semaphore("n", 2)))
		release(f.t, l)
	}},
	{"many readers or one writer", "D TestMultipleReadersSingleWriter, Cu testContendingDowngrading", func(f fixture, c *pglock.Client) {
		one, two := held(f.t, c.Reader("n")), held(f.t, f.open().Reader("n"))
		isBusy(f.t, "a writer beside readers", c.Writer("n"))
		other := f.open()
		writer := waits(f, other.Writer("n"))
		release(f.t, one)
		still(f, writer)
		release(f.t, two)
		w := next(f.t, writer)
		isBusy(f.t, "a reader beside a writer", c.Reader("n"))
		isBusy(f.t, "a second writer", c.Writer("n"))
		second := waits(f, c.Writer("n"))
		downgrade(f.t, w)
		still(f, second)
		release(f.t, w)
		release(f.t, next(f.t, second))
	}},
	{"readers do not pass a waiting writer", "D TestWriterTrumpsReader, Cu testWriterAgainstConstantReaders, testOrdering", func(f fixture, c *pglock.Client) {
		first := held(f.t, c.Reader("n"))
		var clients [4]*pglock.Client
		for i := range clients {
			clients[i] = f.open()
		}
		writer := waits(f, clients[0].Writer("n"))
		isBusy(f.t, "a reader behind a waiting writer", c.Reader("n"))
		readers := []<-chan *pglock.Lease{waits(f, clients[1].Reader("n")), waits(f, clients[2].Reader("n"))}
		last := waits(f, clients[3].Writer("n"))
		release(f.t, first)
		w := next(f.t, writer)
		still(f, readers[0])
		release(f.t, w)
		a, b := next(f.t, readers[0]), next(f.t, readers[1]) // together
		still(f, last)
		release(f.t, a)
		release(f.t, b)
		release(f.t, next(f.t, last))
	}},
	{"the only reader becomes the writer", "D TestUpgradeToWriteLock, TestUpgradeableHandleDisposal, TestUpgradeableHandleMultipleUpgrades", func(f fixture, c *pglock.Client) {
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
		if _, err := w.TryUpgrade(f.t.Context()); !errors.Is(err, pglock.ErrHeldByCaller) {
			f.t.Errorf("a writer: %v", err)
		}
		release(f.t, w)
		release(f.t, r)
		if _, err := r.TryUpgrade(f.t.Context()); !errors.Is(err, pglock.ErrReleased) {
			f.t.Errorf("after the end: %v", err)
		}
	}},
	{"renewals do not take an upgrade for a loss", "D TestCanUpgradeHandleWhileMonitoring", func(f fixture, _ *pglock.Client) {
		c := f.open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(10*time.Millisecond)) // renewals all the time
		w := held(f.t, c.Writer("n"))
		for range 10 {
			downgrade(f.t, w)
			r := w
			var err error
			if w, err = r.TryUpgrade(f.t.Context()); err != nil || errors.Is(r.Err(), pglock.ErrLost) {
				f.t.Fatalf("%v, the reader: %v", err, r.Err())
			}
			version := value[int](f, "SELECT version FROM pglock.distributed_locks")
			pgtest.Eventually(f.t, 10*time.Second, "a renewal", func() bool { return value[int](f, "SELECT version FROM pglock.distributed_locks") > version })
		}
		f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'n'")
		within(f.t, 10*time.Second, "the loss", w.Done())
	}},
	{"of several names one is in the way", "D TestCompositePartialAcquisitionFailure, TestCompositeAcquireThrowsOnTimeout, Cu testSomeLocksLock", func(f fixture, c *pglock.Client) {
		holder, both := held(f.t, c.Lock("m")), f.open()
		_, err := both.All(both.Lock("n"), both.Lock("m")).TryAcquire(f.t.Context())
		_ = busyName(f.t, err, "m") // fails the test itself
		_, err = both.All(both.Lock("n"), both.Lock("m")).Acquire(f.t.Context(), pglock.WithWait(50*time.Millisecond))
		if !errors.Is(err, pglock.ErrTimeout) {
			f.t.Errorf("%v", err)
		}
		release(f.t, held(f.t, c.Lock("n"))) // it is free
		release(f.t, holder)
	}},
	{"a lost name does not keep the others", "Cu testSomeReleasesFail, D TestCompositeHandleLostToken", func(f fixture, c *pglock.Client) {
		l := held(f.t, c.All(c.Lock("n"), c.Lock("m"), c.Lock("o")))
		if err := f.open().Revoke(f.t.Context(), "m", l.Token(), "test"); err != nil {
			f.t.Fatal(err)
		}
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
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c.test(f, f.open())
		})
	}
}
