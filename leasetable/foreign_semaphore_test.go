//nolint:thelper // the functions are the test cases
package leasetable_test

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
	"github.com/pglock/pglock-go/leasetable"
)

// The cases of other packages' suites for semaphores, under the names that they have there. Only what
// they require is taken over. Where this package answers otherwise on purpose, the case says so.

// highest counts who is inside, and remembers the highest number.
type highest struct{ now, most atomic.Int64 }

func (h *highest) enter() (now int64) {
	now = h.now.Add(1)
	for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
	}
	return now
}

func (h *highest) leave() { h.now.Add(-1) }

// acquireN waits for permits.
func acquireN(t *testing.T, s *leasetable.Semaphore, weight int, opts ...leasetable.LeaseOption) *leasetable.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), weight, opts...)
	if err != nil {
		t.Fatalf("Acquire(%d): %v", weight, err)
	}
	return l
}

// TestDistributedLockSemaphore has the cases of madelson/DistributedLock: DistributedSemaphoreCoreTestCases
// and DbSemaphoreTestCases.
func TestDistributedLockSemaphore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T){
		"TestMaxCount": func(t *testing.T) {
			c := f.open()
			for name, n := range map[string]int{"five": 5, "twenty-three": 23} {
				release(t, permits(t, semaphore(t, c, name, n), 1))
				if k, err := c.Get(t.Context(), name); err != nil || k.Permits != n || k.Kind != leasetable.KindSemaphore {
					t.Errorf("%+v, %v: want %d permits", k, err, n)
				}
			}
		},
		"TestConcurrencyHandling": func(t *testing.T) {
			const limit, workers, trials = 3, 10, 8
			var h highest
			var seen [limit + 2]atomic.Bool
			var wg sync.WaitGroup
			for range workers {
				s := semaphore(t, f.open(), "concurrency", limit)
				wg.Go(func() {
					for range trials {
						l, err := s.Acquire(t.Context(), 1)
						if err != nil {
							t.Error(err)
							return
						}
						seen[min(h.enter(), limit+1)].Store(true)
						<-time.After(5 * time.Millisecond)
						h.leave()
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if !seen[1].Load() || !seen[2].Load() || !seen[3].Load() || seen[4].Load() {
				t.Errorf("not every number from 1 to 3 was inside, or more: at most %d", h.most.Load())
			}
		},
		"TestDrain": func(t *testing.T) {
			a, b := semaphore(t, f.open(), "drain", 4), semaphore(t, f.open(), "drain", 4)
			held := []*leasetable.Lease{acquireN(t, a, 1)}
			release(t, acquireN(t, b, 1))
			for len(held) < 4 {
				held = append(held, acquireN(t, a, 1))
			}
			noPermits(t, b, 1)
			noPermits(t, a, 1)
			release(t, held[0])
			release(t, acquireN(t, b, 1))
			for _, l := range held {
				release(t, l)
			}
		},
		"TestHighTicketCount": func(t *testing.T) { // a name has at most 512 bytes
			s := semaphore(t, f.open(), "s"+strings.Repeat("o", 490)+" many tickets!", leasetable.MaxPermits)
			var held []*leasetable.Lease
			for range 100 {
				held = append(held, acquireN(t, s, 1))
			}
			for _, l := range held {
				release(t, l)
			}
		},
		"TestSemaphoreParallelism": func(t *testing.T) {
			const limit, tasks = 10, 100
			c := f.open()
			var h highest
			full := make(chan struct{})
			var once sync.Once
			var wg sync.WaitGroup
			for range tasks {
				s := semaphore(t, c, "parallelism", limit)
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), 1)
					if err != nil {
						t.Error(err)
						return
					}
					if h.enter() == limit {
						once.Do(func() { close(full) })
					}
					select { // the first ones stay until there is no room
					case <-full:
					case <-time.After(20 * time.Second):
					}
					h.leave()
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if h.most.Load() != limit {
				t.Errorf("at most %d were inside, want %d", h.most.Load(), limit)
			}
		},
		"TestSelfDeadlockThrowsOnInfiniteWait": func(t *testing.T) {
			// There, a connection that has all permits; here, a context that carries their leases.
			s := semaphore(t, f.open(), "self", 2)
			first := permits(t, s, 1)
			second, err := s.Acquire(first.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := second.WithContext(second.Context())
			defer cancel()
			_, err = s.Acquire(ctx, 1)
			var held *leasetable.HeldError
			if !errors.As(err, &held) || !strings.Contains(err.Error(), "permits") || strings.Contains(err.Error(), "WithJoin") {
				t.Errorf("%v", err)
			}
			if _, err := s.TryAcquire(ctx, 1); !errors.Is(err, leasetable.ErrNotAcquired) {
				t.Errorf("a try does not wait, so it is only busy: %v", err)
			}
			release(t, first) // it does not count any more
			third, err := s.Acquire(ctx, 1)
			if err != nil {
				t.Fatal(err)
			}
			release(t, second)
			release(t, third)
		},
		"TestMultipleConnectionsCannotTriggerSelfDeadlock": func(t *testing.T) {
			a, b := semaphore(t, f.open(), "others", 2), semaphore(t, f.open(), "others", 2)
			first, second := permits(t, a, 1), permits(t, b, 1)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { _, err := a.Acquire(ctx, 1); ended <- err }()
			rest(t, 100*time.Millisecond)
			select {
			case err := <-ended:
				t.Fatalf("it does not wait: %v", err)
			default:
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, leasetable.ErrNotAcquired) {
				t.Errorf("%v", err)
			}
			release(t, first)
			release(t, second)
		},
		"TestSelfDeadlockWaitsOnSpecifiedTime": func(t *testing.T) {
			s := semaphore(t, f.open(), "time", 1)
			l := permits(t, s, 1)
			began := time.Now()
			_, err := s.Acquire(t.Context(), 1, leasetable.WithWait(200*time.Millisecond))
			if took := time.Since(began); !errors.Is(err, leasetable.ErrTimeout) || took < 200*time.Millisecond || took > 5*time.Second {
				t.Errorf("after %v: %v", took, err)
			}
			release(t, l)
		},
		"TestSelfDeadlockWaitRespectsCancellation": func(t *testing.T) {
			s := semaphore(t, f.open(), "cancel", 1)
			l := permits(t, s, 1)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { _, err := s.Acquire(ctx, 1, leasetable.WithWait(20*time.Second)); ended <- err }()
			rest(t, 100*time.Millisecond)
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			release(t, l)
		},
		"TestSameNameDifferentCounts": func(t *testing.T) { // works there in some cases; an error here
			release(t, permits(t, semaphore(t, f.open(), "counts", 2), 1))
			if _, err := semaphore(t, f.open(), "counts", 3).TryAcquire(t.Context(), 1); !errors.Is(err, leasetable.ErrKind) {
				t.Errorf("%v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// TestCuratorInterProcessSemaphoreV2 has the cases of TestInterProcessSemaphore in Apache Curator.
func TestCuratorInterProcessSemaphoreV2(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T){
		"testAcquireAfterLostServer": func(t *testing.T) {
			const clients = 10
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			c := f.through(proxy.URL(pgtest.URL(t))).open()
			ctx, stop := context.WithCancel(t.Context())
			var acquired atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				s := semaphore(t, c, "lost server", 1)
				wg.Go(func() {
					for ctx.Err() == nil {
						l, err := s.Acquire(ctx, 1)
						if err == nil {
							acquired.Add(1)
							_ = l.Release(t.Context()) // the server may be gone
						}
					}
				})
			}
			more := func(what string) {
				t.Helper()
				before := acquired.Load()
				pgtest.Eventually(t, 40*time.Second, what, func() bool { return acquired.Load() > before+clients })
			}
			more("permits are acquired")
			proxy.Refuse(true)
			proxy.Sever()
			rest(t, 500*time.Millisecond)
			proxy.Refuse(false)
			more("permits are acquired after the outage")
			stop()
			wg.Wait()
		},
		"testThreadedLeaseIncrease": func(t *testing.T) {
			one := semaphore(t, f.open(), "increase", 1)
			l := acquireN(t, one, 1)
			second := make(chan error, 1)
			go func() { _, err := one.Acquire(t.Context(), 1); second <- err }()
			pgtest.Eventually(t, 20*time.Second, "the second waits", func() bool { return leasetable.HeadWaits(leasetable.ClientOf(one), "increase") })
			two, err := semaphore(t, f.open(), "increase", 1).Resize(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			// There, the waiter gets the new permit. Here, it learns at once that its number is wrong.
			began := time.Now()
			if err := <-second; !errors.Is(err, leasetable.ErrKind) || time.Since(began) > 5*time.Second {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			release(t, acquireN(t, two, 1))
			release(t, l)
		},
		"testClientClose": func(t *testing.T) {
			a := f.openUnclosed()
			b := semaphore(t, f.open(), "close", 1)
			release(t, acquireN(t, b, 1))
			acquireN(t, semaphore(t, a, "close", 1), 1)
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			release(t, permits(t, b, 1))
		},
		"testMaxPerSession": func(t *testing.T) {
			const clients, rounds = 6, 10
			limit := 10 + rand.N(20)
			var inside, most atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				s := semaphore(t, f.open(), "session", limit)
				wg.Go(func() {
					for range rounds {
						weight := 1 + rand.N(limit)
						l, err := s.Acquire(t.Context(), weight)
						if err != nil {
							t.Error(err)
							return
						}
						now := inside.Add(int64(weight))
						for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
						}
						<-time.After(rand.N(5 * time.Millisecond))
						inside.Add(-int64(weight))
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if most.Load() < 1 || most.Load() > int64(limit) {
				t.Errorf("%d permits of %d were held", most.Load(), limit)
			}
		},
		"testRelease1AtATime": func(t *testing.T) {
			const clients, limit = 10, 5
			var h highest
			var uses atomic.Int64
			full := make(chan struct{})
			var wg sync.WaitGroup
			for range clients {
				s := semaphore(t, f.open(), "one at a time", limit)
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), 1)
					if err != nil {
						t.Error(err)
						return
					}
					uses.Add(1)
					if h.enter() == limit && uses.Load() == limit {
						close(full)
					}
					select { // until as many are inside as there is room for
					case <-full:
					case <-time.After(20 * time.Second):
						t.Error("not all permits are used")
					}
					h.leave()
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if uses.Load() != clients || h.most.Load() != limit {
				t.Errorf("%d clients, at most %d inside", uses.Load(), h.most.Load())
			}
		},
		"testReleaseInChunks": func(t *testing.T) {
			const limit, workers = 11, 100
			c := f.open()
			var h highest
			leave := make(chan struct{}, workers)
			var wg sync.WaitGroup
			for range workers {
				s := semaphore(t, c, "chunks", limit)
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), 1)
					if err != nil {
						t.Error(err)
						return
					}
					h.enter()
					<-leave
					h.leave()
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			for left := workers; left > 0; {
				chunk := min(1+rand.N(5), left)
				for range chunk {
					leave <- struct{}{}
				}
				left -= chunk
				<-time.After(rand.N(10 * time.Millisecond))
			}
			wg.Wait()
			if h.now.Load() != 0 || h.most.Load() < 1 || h.most.Load() > limit {
				t.Errorf("%d inside, at most %d of %d", h.now.Load(), h.most.Load(), limit)
			}
		},
		"testThreads": func(t *testing.T) {
			s := semaphore(t, f.open(), "threads", 1)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), 1)
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		},
		"testSimple": func(t *testing.T) {
			s := semaphore(t, f.open(), "simple", 1)
			l := acquireN(t, s, 1)
			if _, err := s.Acquire(t.Context(), 1, leasetable.WithWait(100*time.Millisecond)); !errors.Is(err, leasetable.ErrTimeout) {
				t.Errorf("%v", err)
			}
			release(t, l)
		},
		"testSimple2": func(t *testing.T) {
			c := f.open()
			var held []*leasetable.Lease
			for range 3 {
				held = append(held, acquireN(t, semaphore(t, c, "simple 2", 3), 1))
			}
			s := semaphore(t, c, "simple 2", 3)
			if _, err := s.Acquire(t.Context(), 1, leasetable.WithWait(100*time.Millisecond)); !errors.Is(err, leasetable.ErrTimeout) {
				t.Errorf("%v", err)
			}
			release(t, held[0])
			release(t, acquireN(t, s, 1))
			release(t, held[1])
			release(t, held[2])
		},
		"testGetParticipantNodes": func(t *testing.T) {
			c := f.open(leasetable.WithHolder("H"))
			s := semaphore(t, c, "participants", 3)
			var held []*leasetable.Lease
			for range 3 {
				held = append(held, acquireN(t, s, 1))
			}
			k, err := c.Get(t.Context(), "participants")
			if err != nil || len(k.Grants) != 3 || k.InUse() != 3 || !k.Held() {
				t.Fatalf("%+v, %v", k, err)
			}
			for i, g := range k.Grants {
				if g.Token != held[i].Token() || g.Holder != "H" || g.Permits != 1 || g.Exclusive || g.Remaining <= 0 {
					t.Errorf("grant %d: %+v", i, g)
				}
				release(t, held[i])
			}
		},
		"testChildReaperCleansUpLockNodes": func(t *testing.T) {
			g := newFixture(t) // it prunes
			c := g.open(leasetable.WithoutPruning())
			release(t, acquireN(t, semaphore(t, c, "idle", 1), 1))
			g.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '1 hour', ended_at = clock_timestamp() - interval '1 hour'")
			if n, err := c.Prune(t.Context(), time.Minute); err != nil || n != 1 {
				t.Errorf("%d names were pruned, %v", n, err)
			}
		},
		"testNoOrphanedNodes": func(t *testing.T) {
			g := newFixture(t)
			a, b := semaphore(t, g.open(), "s", 1), semaphore(t, g.open(), "s", 1)
			l := acquireN(t, a, 1)
			second := make(chan *leasetable.Lease, 1)
			go func() { l, err := b.Acquire(t.Context(), 1); check(t, err); second <- l }()
			g.waiters(1)
			g.sql("DELETE FROM pglock.lock_waiters") // the node of the waiter
			release(t, l)
			release(t, <-second)
			if n := value[int](g, "SELECT count(*) FROM pglock.lock_permits"); n != 0 {
				t.Errorf("%d permits are left", n)
			}
			release(t, acquireN(t, a, 1))
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// check fails the test after an error, on any goroutine.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestConsulSemaphore has the cases of api/semaphore_test.go in HashiCorp Consul.
func TestConsulSemaphore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T){
		"SemaphoreAcquireRelease": func(t *testing.T) {
			// A handle there is a lease here, so a second Acquire is another grant.
			s := semaphore(t, f.open(), "acquire", 2)
			l := acquireN(t, s, 1)
			if err := l.Err(); err != nil {
				t.Errorf("held: %v", err)
			}
			release(t, l)
			release(t, l) // no error here
			within(t, time.Second, "the end of the lease", l.Done())
		},
		"SemaphoreForceInvalidate": func(t *testing.T) {
			c := f.open(leasetable.WithTTL(2 * time.Second)) // it learns of it with its next renewal
			l := acquireN(t, semaphore(t, c, "invalidate", 2), 1)
			if err := f.open().Revoke(t.Context(), "invalidate", l.Token(), "nuked"); err != nil {
				t.Fatal(err)
			}
			within(t, 20*time.Second, "the loss", l.Done())
			if err := l.Err(); !errors.Is(err, leasetable.ErrRevoked) || !strings.Contains(err.Error(), "nuked") {
				t.Errorf("%v", err)
			}
		},
		"SemaphoreDeleteKey": func(t *testing.T) {
			g := newFixture(t)
			l := acquireN(t, semaphore(t, g.open(leasetable.WithTTL(time.Second)), "s", 2), 1)
			g.sql("DELETE FROM pglock.lock_permits")
			g.sql("DELETE FROM pglock.distributed_locks")
			within(t, 2*time.Second, "the loss", l.Done())
			if err := l.Err(); !errors.Is(err, leasetable.ErrLost) {
				t.Errorf("%v", err)
			}
		},
		"SemaphoreContend": func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 4 {
				s := semaphore(t, f.open(), "contend", 2)
				wg.Go(func() {
					l, err := s.Acquire(t.Context(), 1)
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil {
						t.Errorf("contender %d: %v", i, err)
					}
				})
			}
			wg.Wait()
		},
		"SemaphoreBadLimit": func(t *testing.T) {
			c := f.open()
			if _, err := c.Semaphore("limit", 0); !errors.Is(err, leasetable.ErrInvalidOption) {
				t.Errorf("%v", err)
			}
			l := acquireN(t, semaphore(t, c, "limit", 1), 1)
			_, err := semaphore(t, c, "limit", 2).Acquire(t.Context(), 1)
			var kind *leasetable.KindError
			if !errors.As(err, &kind) || kind.Found != 1 || kind.Wanted != 2 {
				t.Errorf("%v", err)
			}
			release(t, l)
		},
		"SemaphoreDestroy": func(t *testing.T) {
			g := newFixture(t) // it prunes
			c := g.open(leasetable.WithoutPruning())
			a, b := acquireN(t, semaphore(t, c, "s", 2), 1), acquireN(t, semaphore(t, g.open(), "s", 2), 1)
			destroy := func() int64 {
				t.Helper()
				g.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '1 hour', ended_at = NULL")
				n, err := c.Prune(t.Context(), time.Minute)
				check(t, err)
				return n
			}
			for _, l := range []*leasetable.Lease{a, b} {
				if n := destroy(); n != 0 {
					t.Error("a semaphore in use was pruned")
				}
				release(t, l)
			}
			if n := destroy(); n != 1 {
				t.Errorf("an unused semaphore was not pruned: %d", n)
			}
		},
		"SemaphoreConflict": func(t *testing.T) {
			c := f.open()
			l := try(t, c, "conflict")
			if _, err := semaphore(t, c, "conflict", 2).Acquire(t.Context(), 1); !errors.Is(err, leasetable.ErrKind) {
				t.Errorf("%v", err)
			}
			if _, err := semaphore(t, c, "conflict", 2).Resize(t.Context(), 3); !errors.Is(err, leasetable.ErrKind) {
				t.Errorf("%v", err)
			}
			release(t, l)
		},
		"SemaphoreMonitorRetry": func(t *testing.T) {
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			c := f.through(proxy.URL(pgtest.URL(t))).open(leasetable.WithTTL(3*time.Second), leasetable.WithRenewEvery(200*time.Millisecond))
			l := acquireN(t, semaphore(t, c, "retry", 2), 1)
			for range 2 {
				proxy.Refuse(true)
				proxy.Sever()
				rest(t, 300*time.Millisecond)
				proxy.Refuse(false)
				rest(t, 300*time.Millisecond)
			}
			if err := l.Err(); err != nil {
				t.Fatalf("lost after some failures: %v", err)
			}
			proxy.Refuse(true)
			proxy.Sever()
			within(t, 10*time.Second, "the loss", l.Done())
			proxy.Refuse(false)
		},
		"SemaphoreOneShot": func(t *testing.T) {
			s := semaphore(t, f.open(), "one shot", 2)
			first, second := acquireN(t, s, 1), acquireN(t, semaphore(t, f.open(), "one shot", 2), 1)
			third := semaphore(t, f.open(), "one shot", 2)
			began := time.Now()
			if _, err := third.Acquire(t.Context(), 1, leasetable.WithWait(250*time.Millisecond)); !errors.Is(err, leasetable.ErrTimeout) || time.Since(began) < 250*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			release(t, second)
			release(t, acquireN(t, third, 1, leasetable.WithWait(10*time.Second)))
			release(t, first)
		},
	} {
		t.Run(fmt.Sprintf("TestAPI_%s", name), func(t *testing.T) { t.Parallel(); test(t) })
	}
}
