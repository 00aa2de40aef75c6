//nolint:thelper // the functions are the test cases
package leasetable_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// The cases of other packages' suites for readers-writer locks, under the names that they have there.
// Only what they require is taken over.

// waitForLock acquires in the background.
func waitForLock(t *testing.T, acquire func(context.Context, ...leasetable.LeaseOption) (*leasetable.Lease, error)) <-chan *leasetable.Lease {
	t.Helper()
	granted := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		granted <- l
	}()
	return granted
}

// notYet fails the test if the lock is granted within a moment.
func notYet(t *testing.T, granted <-chan *leasetable.Lease) {
	t.Helper()
	select {
	case l := <-granted:
		t.Fatalf("granted too early: %v", l)
	case <-time.After(50 * time.Millisecond):
	}
}

// granted returns the lease when it is granted.
func granted(t *testing.T, from <-chan *leasetable.Lease) *leasetable.Lease {
	t.Helper()
	select {
	case l := <-from:
		if l == nil {
			t.FailNow()
		}
		return l
	case <-time.After(30 * time.Second):
		t.Fatal("not granted")
	}
	return nil
}

// busy fails the test unless an acquire found the lock held.
func busy(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestDistributedLockReaderWriter has the cases of madelson/DistributedLock:
// DistributedReaderWriterLockCoreTestCases and DistributedUpgradeableReaderWriterLockCoreTestCases. An
// upgradeable read lock there is any reader's lease here.
func TestDistributedLockReaderWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lock := func(t *testing.T, name string) *leasetable.RWLock { t.Helper(); return rwlock(t, f.open(), name) }
	for name, test := range map[string]func(t *testing.T, name string){
		"TestMultipleReadersSingleWriter": func(t *testing.T, name string) {
			first, second := read(t, lock(t, name)), read(t, lock(t, name))
			_, err := lock(t, name).TryLock(t.Context())
			busy(t, "a writer beside readers", err)
			writer := waitForLock(t, lock(t, name).Lock)
			notYet(t, writer)
			release(t, first)
			notYet(t, writer)
			release(t, second)
			w := granted(t, writer)
			_, err = lock(t, name).TryLock(t.Context())
			busy(t, "a second writer", err)
			release(t, w)
			release(t, write(t, lock(t, name)))
		},
		"TestWriterTrumpsReader": func(t *testing.T, name string) {
			r := read(t, lock(t, name))
			writer := waitForLock(t, lock(t, name).Lock)
			pgtest.Eventually(t, 20*time.Second, "the writer waits", func() bool {
				return value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE name = $1", name) == 1
			})
			_, err := lock(t, name).TryRLock(t.Context())
			busy(t, "a reader behind a waiting writer", err)
			release(t, r)
			release(t, granted(t, writer))
		},
		"TestReaderWriterLockBadArguments": func(t *testing.T, name string) {
			l := lock(t, name)
			for _, acquire := range []func(context.Context, ...leasetable.LeaseOption) (*leasetable.Lease, error){l.Lock, l.TryLock, l.RLock, l.TryRLock} {
				if _, err := acquire(t.Context(), leasetable.WithWait(-2*time.Second)); !errors.Is(err, leasetable.ErrInvalidOption) {
					t.Errorf("%v", err)
				}
			}
		},
		"TestUpgradeToWriteLock": func(t *testing.T, name string) {
			other, r := read(t, lock(t, name)), read(t, lock(t, name))
			_, err := r.TryUpgrade(t.Context())
			busy(t, "an upgrade beside a reader", err)
			release(t, other)
			w, err := r.TryUpgrade(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			reader := waitForLock(t, lock(t, name).RLock)
			notYet(t, reader)
			release(t, w)
			release(t, granted(t, reader))
		},
		"TestUpgradeableHandleDisposal": func(t *testing.T, name string) {
			r := read(t, lock(t, name))
			release(t, r)
			release(t, r)
			if _, err := r.TryUpgrade(t.Context()); !errors.Is(err, leasetable.ErrReleased) {
				t.Errorf("%v", err)
			}
		},
		"TestUpgradeableHandleMultipleUpgrades": func(t *testing.T, name string) {
			w, err := read(t, lock(t, name)).TryUpgrade(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.TryUpgrade(t.Context()); !errors.Is(err, leasetable.ErrHeldByCaller) {
				t.Errorf("%v", err)
			}
			release(t, w)
		},
		"TestCanUpgradeHandleWhileMonitoring": func(t *testing.T, name string) {
			c := f.open(leasetable.WithTTL(time.Second), leasetable.WithRenewEvery(20*time.Millisecond)) // renewals all the time
			w := write(t, rwlock(t, c, name))
			for range 10 {
				downgrade(t, w)
				r := w
				var err error
				if w, err = r.TryUpgrade(t.Context()); err != nil {
					t.Fatal(err)
				}
				if errors.Is(r.Err(), leasetable.ErrLost) {
					t.Errorf("a renewal took the upgrade for a loss: %v", r.Err())
				}
				rest(t, 30*time.Millisecond)
				if err := w.Err(); err != nil {
					t.Fatal(err)
				}
			}
			f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = $1", name)
			within(t, 10*time.Second, "the loss", w.Done())
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, name) })
	}
}

// TestCuratorInterProcessReadWriteLock has the cases of TestInterProcessReadWriteLock and
// TestInterProcessReadWriteLockBase in Apache Curator.
func TestCuratorInterProcessReadWriteLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]func(t *testing.T, name string){
		"testGetParticipantNodes": func(t *testing.T, name string) {
			const readers, writers = 20, 8
			c := f.open()
			var held []*leasetable.Lease
			for range readers {
				held = append(held, read(t, rwlock(t, c, name)))
			}
			var waiting []<-chan *leasetable.Lease
			for range writers { // each is a process of its own: a client is one waiter
				waiting = append(waiting, waitForLock(t, rwlock(t, f.open(), name).Lock))
			}
			pgtest.Eventually(t, 20*time.Second, "all participants are shown", func() bool {
				k, err := c.Get(t.Context(), name)
				return err == nil && k.Kind == leasetable.KindRWLock && len(k.Grants) == readers && len(k.Waiters) == writers
			})
			if n := value[int](f, "SELECT count(*) FROM pglock.locks_waiting WHERE name = $1 AND exclusive AND permits IS NULL", name); n != writers {
				t.Errorf("%d writers in locks_waiting", n)
			}
			if n := value[int](f, "SELECT count(*) FROM pglock.locks_held WHERE name = $1 AND NOT exclusive AND permits IS NULL", name); n != readers {
				t.Errorf("%d readers in locks_held", n)
			}
			for _, l := range held {
				release(t, l)
			}
			for range writers {
				var w *leasetable.Lease
				pgtest.Eventually(t, 20*time.Second, "the next writer", func() bool {
					for _, granted := range waiting {
						select {
						case w = <-granted:
							return true
						default:
						}
					}
					return false
				})
				release(t, w)
			}
		},
		"testThatUpgradingIsDisallowed": func(t *testing.T, name string) {
			// A writer does not get in beside its own reader; TryUpgrade does that.
			c := f.open()
			r := read(t, rwlock(t, c, name))
			_, err := rwlock(t, c, name).Lock(t.Context(), leasetable.WithWait(100*time.Millisecond))
			busy(t, "a writer beside its own reader", err)
			if _, err := rwlock(t, c, name).Lock(r.Context()); !errors.Is(err, leasetable.ErrHeldByCaller) {
				t.Errorf("inside: %v", err)
			}
			release(t, r)
		},
		"testThatDowngradingRespectsThreads": func(t *testing.T, name string) {
			c := f.open()
			w := write(t, rwlock(t, c, name))
			_, err := rwlock(t, c, name).RLock(t.Context(), leasetable.WithWait(100*time.Millisecond))
			busy(t, "a reader beside a writer of the same process", err)
			release(t, w)
		},
		"testDowngrading": func(t *testing.T, name string) {
			w := write(t, rwlock(t, f.open(), name))
			downgrade(t, w)
			release(t, w)
			release(t, write(t, rwlock(t, f.open(), name)))
		},
		"testContendingDowngrading": func(t *testing.T, name string) {
			c := f.open()
			w := write(t, rwlock(t, c, name))
			other := waitForLock(t, rwlock(t, c, name).Lock)
			notYet(t, other)
			downgrade(t, w)
			notYet(t, other)
			release(t, w)
			release(t, granted(t, other))
		},
		"testBasic": func(t *testing.T, name string) {
			const clients, rounds = 8, 12
			var readers, writers highest
			var wrote atomic.Int64
			var wg sync.WaitGroup
			for range clients {
				l := rwlock(t, f.open(), name)
				wg.Go(func() {
					for range rounds {
						acquire, mine, isWriter := l.RLock, &readers, rand.N(100) < 10
						if isWriter {
							acquire, mine = l.Lock, &writers
							wrote.Add(1)
						}
						lease, err := acquire(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if now := mine.enter(); isWriter && (now > 1 || readers.now.Load() > 0) || !isWriter && writers.now.Load() > 0 {
							t.Errorf("%d writers and %d readers at the same time", writers.now.Load(), readers.now.Load())
						}
						<-time.After(rand.N(5 * time.Millisecond))
						mine.leave()
						if err := lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if wrote.Load() > 0 && writers.most.Load() != 1 || readers.most.Load() < 2 {
				t.Errorf("at most %d writers and %d readers", writers.most.Load(), readers.most.Load())
			}
		},
		"testSetNodeData": func(t *testing.T, name string) {
			labels := map[string]string{"k": "v"}
			opt := leasetable.WithLabels(labels)
			labels["k"] = "changed"
			c := f.open()
			w := write(t, rwlock(t, c, name), opt)
			for range 2 {
				k, err := c.Get(t.Context(), name)
				if err != nil || len(k.Grants) != 1 || k.Grants[0].Labels["k"] != "v" {
					t.Errorf("%+v, %v", k, err)
				}
				downgrade(t, w)
			}
			release(t, w)
		},
		"testLockPath": func(t *testing.T, name string) { // the session of the writer is killed
			a, b := f.openUnclosed(), rwlock(t, f.open(), name)
			w := write(t, rwlock(t, a, name), leasetable.WithTTL(500*time.Millisecond), leasetable.WithoutRenewal())
			r, err := b.RLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !errors.Is(w.Err(), leasetable.ErrLost) {
				t.Errorf("the writer has %v when the reader comes in", w.Err())
			}
			release(t, r)
			_ = a.Close(t.Context()) // its lease is lost
		},
		"testOrdering": func(t *testing.T, name string) {
			type member struct {
				id    int
				lease *leasetable.Lease
			}
			granted := make(chan member)
			tickets := 0
			start := func(id int, writer, waits bool) {
				t.Helper()
				l := rwlock(t, f.open(), name)
				go func() {
					acquire := l.RLock
					if writer {
						acquire = l.Lock
					}
					lease, err := acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					granted <- member{id: id, lease: lease}
				}()
				if waits {
					tickets++
					pgtest.Eventually(t, 20*time.Second, fmt.Sprintf("%d waits", id), func() bool {
						return value[int](f, "SELECT count(*) FROM pglock.locks_waiting WHERE name = $1", name) == tickets
					})
				}
			}
			inside := map[int]*leasetable.Lease{}
			expect := func(ids ...int) {
				t.Helper()
				for range ids {
					select {
					case m := <-granted:
						inside[m.id] = m.lease
					case <-time.After(30 * time.Second):
						t.Fatalf("inside are %v, want %v", slices.Sorted(maps.Keys(inside)), ids)
					}
				}
				select {
				case m := <-granted:
					t.Fatalf("%d is inside as well", m.id)
				case <-time.After(50 * time.Millisecond):
				}
				if got := slices.Sorted(maps.Keys(inside)); !slices.Equal(got, ids) {
					t.Fatalf("inside are %v, want %v", got, ids)
				}
			}
			leave := func() {
				t.Helper()
				for id, l := range inside {
					delete(inside, id)
					release(t, l)
				}
			}
			for id := 1; id <= 3; id++ {
				start(id, false, false)
			}
			expect(1, 2, 3)
			start(4, true, true)
			leave()
			expect(4)
			tickets = 0
			start(5, false, true)
			start(6, false, true)
			start(7, true, true)
			start(8, false, true)
			leave()
			expect(5, 6)
			leave()
			expect(7)
			leave()
			expect(8)
			leave()
		},
		"testWriterAgainstConstantReaders": func(t *testing.T, name string) {
			const readers, rounds = 8, 5
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range readers {
				l := rwlock(t, f.open(), name)
				wg.Go(func() {
					for ctx.Err() == nil {
						lease, err := l.RLock(ctx)
						if err != nil {
							continue // ctx has ended
						}
						<-time.After(20 * time.Millisecond)
						if err := lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			l := rwlock(t, f.open(), name)
			for range rounds {
				w, err := l.Lock(t.Context(), leasetable.WithWait(10*time.Second))
				if err != nil {
					t.Error(err)
					break
				}
				<-time.After(5 * time.Millisecond)
				release(t, w)
			}
			stop()
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, name) })
	}
}
