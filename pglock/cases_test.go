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

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// kinds are the kinds of locks that one caller holds alone. Their names contain "n", or are "n" and "m".
var kinds = map[string]func(c *pglock.Client) pglock.Lock{
	"one holder":    func(c *pglock.Client) pglock.Lock { return c.Lock("n") },
	"semaphore":     func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 1) },
	"weighted":      func(c *pglock.Client) pglock.Lock { return c.Semaphore("n", 5).Weight(3) },
	"writer":        func(c *pglock.Client) pglock.Lock { return c.Writer("n") },
	"several names": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("n"), c.Lock("m")) },
	"several kinds": func(c *pglock.Client) pglock.Lock { return c.All(c.Lock("n"), c.Semaphore("m", 3).Weight(2)) },
}

// held acquires a lock that is free for the caller, who may have to wait.
func held(t *testing.T, l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	ctx := bounded(t, pgtest.Patience)
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
	const sql = "SELECT coalesce(max(ticket), 0) FROM pglock.lock_waiters" // not their number: old ones expire meanwhile
	before, got := value[int64](f, sql), async(f.t, l)
	pgtest.Eventually(f.t, "the next waiter", func() bool { return value[int64](f, sql) > before })
	return got
}

// next returns the lease of a waiter.
func next(t *testing.T, got <-chan *pglock.Lease) *pglock.Lease {
	t.Helper()
	select {
	case l := <-got:
		if l == nil {
			t.FailNow()
		}
		return l
	case <-time.After(pgtest.Patience):
		t.Fatal("the waiter is not granted the lock")
		return nil
	}
}

// still fails the test if the waiter has been granted the lock. A look at the tables comes first: by then
// a grant by the statement before has returned.
func still(f fixture, got <-chan *pglock.Lease) {
	f.t.Helper()
	_ = value[int](f, "SELECT count(*) FROM pglock.distributed_locks")
	select {
	case l := <-got:
		f.t.Fatalf("the waiter was granted %q", l.Names())
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
	{"the time of a wait is bounded", "D TestSelfDeadlockWaitsOnSpecifiedTime, Cu testSimple2, Co SemaphoreOneShot", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
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
		until(f, "no ticket is left", 0, "SELECT count(*) FROM pglock.lock_waiters")
		release(f.t, l)
	}},
	{"a waiter leaves when its context ends", "D TestSelfDeadlockWaitRespectsCancellation, TestMultipleConnectionsCannotTriggerSelfDeadlock", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l, other := held(f.t, lock(f.open())), lock(f.open())
		ctx, cancel := context.WithCancel(f.t.Context())
		ended := leaving(ctx, other, pglock.WithWait(time.Minute))
		f.t.Cleanup(cancel)
		pgtest.Eventually(f.t, "the wait", func() bool { return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") > 0 })
		cancel()
		fails(f.t, "", <-ended, context.Canceled, pglock.ErrNotAcquired)
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
	{"a dead holder is followed after its TTL", "P20, Cu testLockPath", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
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
	{"Revoke ends a grant after its guarded transactions", "P63, I4, Co SemaphoreForceInvalidate, D TestCompositeHandleLostToken", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		operator := f.open()
		l := held(f.t, lock(f.open(pglock.WithTTL(5*time.Second)))) // it learns of it with its next renewal
		waiting := waits(f, lock(f.open()))
		tx := begin(f.t, f)
		must(f.t, l.Guard(f.t.Context(), tx))
		run(f.t, tx, "SET LOCAL idle_in_transaction_session_timeout = 0") // or the server would end it with the lease
		fails(f.t, "beside a guarded transaction", operator.Revoke(f.t.Context(), "n", l.Token(), "nuked"), pglock.ErrGuarded)
		ends(f.t, "the loss", l.Done())
		var lost *pglock.LostError
		if err := l.Err(); !errors.As(err, &lost) || lost.Name != "n" || !errors.Is(err, pglock.ErrRevoked) || !strings.Contains(err.Error(), "nuked") {
			f.t.Errorf("%v", err)
		}
		fails(f.t, "a guard after it", fencing.CheckAll(f.t.Context(), begin(f.t, f), l.Fences()...), fencing.ErrStale)
		_ = l.Release(f.t.Context()) // it was lost
		still(f, waiting)
		must(f.t, tx.Commit(f.t.Context()))
		check(f.t, operator.Revoke(f.t.Context(), "n", l.Token(), "nuked"))
		release(f.t, next(f.t, waiting))
		fails(f.t, "no grant", operator.Revoke(f.t.Context(), "n", 1<<40, ""), fencing.ErrStale)
	}},
	{"a lease without its row is lost", "Co SemaphoreDeleteKey, Cu testSomeReleasesFail", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(time.Second))))
		f.sql("DELETE FROM pglock.lock_permits")
		f.sql("DELETE FROM pglock.distributed_locks WHERE name = 'n' OR capacity IS NOT NULL")
		ends(f.t, "the loss", l.Done())
		fails(f.t, "the lease", l.Err(), pglock.ErrLost)
		fails(f.t, "Release", l.Release(f.t.Context()), pglock.ErrLost)
		release(f.t, held(f.t, lock(f.open()), pglock.WithWait(20*time.Second)))
	}},
	{"a lost ticket is replaced", "Cu testNoOrphanedNodes", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c := f.open()
		l, got := held(f.t, lock(f.open())), waits(f, lock(c))
		for what, sql := range map[string]string{
			"gone, as after a crash": "DELETE FROM pglock.lock_waiters",
			"skipped":                "UPDATE pglock.distributed_locks SET ticket = pglock.next_fencing_token() WHERE name = 'n'",
		} {
			const newest = "SELECT coalesce(max(ticket), 0) FROM pglock.lock_waiters"
			first := value[int64](f, newest)
			f.sql(sql)
			pgtest.Eventually(f.t, what+": another ticket", func() bool { return value[int64](f, newest) > first })
		}
		release(f.t, l)
		release(f.t, next(f.t, got))
		f.none("grants are left", grants)
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
		is(f, "rows", 0, "SELECT count(*) FROM pglock.distributed_locks")
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
		is(f, "rows in locks_held", 1, "SELECT count(*) FROM pglock.locks_held WHERE name = 'n' AND holder = 'H' AND remaining > '0'")
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
		is(f, "channels of their own", len(queue), `SELECT count(DISTINCT client) FROM pglock.lock_waiters
			WHERE client ~ '^pglock_[a-z0-9]{20,}(_all/\d+)?$' AND length(client) <= 63`)
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
		proxy, far := f.proxied()
		l := lock(far.open())
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
		pgtest.Eventually(f.t, "an attempt to connect", func() bool { return proxy.Stats().Accepted > before })
		proxy.Refuse(false)
		check(f.t, <-got)
	}},
	{"a lease survives a short outage, and not a long one", "P11, Co SemaphoreMonitorRetry", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		proxy, far := f.proxied()
		l := held(f.t, lock(far.open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(100*time.Millisecond))))
		renewed := func() bool { return time.Until(l.Deadline()) > 4300*time.Millisecond }
		for range 2 {
			proxy.Refuse(true)
			proxy.Sever()
			pgtest.Eventually(f.t, "an outage", func() bool { return !renewed() })
			proxy.Refuse(false)
			pgtest.Eventually(f.t, "a renewal", func() bool { return renewed() || l.Err() != nil })
		}
		if err := l.Err(); err != nil {
			f.t.Fatalf("lost after short outages: %v", err)
		}
		proxy.Refuse(true)
		proxy.Sever()
		ends(f.t, "the loss", l.Done())
		proxy.Refuse(false)
	}},
	{"a lease is renewed, extended, labeled and asked for", "", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		l := held(f.t, lock(f.open(pglock.WithTTL(6*time.Second))))
		first := l.Deadline()
		pgtest.Eventually(f.t, "a renewal", func() bool { return l.Deadline().After(first) })
		check(f.t, l.Extend(f.t.Context(), time.Minute))
		if left := time.Until(l.Deadline()); left < 50*time.Second {
			f.t.Errorf("%v are left of a minute", left)
		}
		labeled := len(l.Names())
		if err := l.SetLabels(f.t.Context(), map[string]string{"k": "v"}); errors.Is(err, fencing.ErrShared) {
			labeled = 0
		} else {
			check(f.t, err)
		}
		if n := value[int](f, `SELECT count(*) FROM pglock.locks_held WHERE labels = '{"k": "v"}'`); n != labeled {
			f.t.Errorf("%d names have the labels, not %d", n, labeled)
		}
		requested := l.ReleaseRequested()
		must(f.t, f.open().RequestRelease(f.t.Context(), "n", l.Token(), "a deployment"))
		ends(f.t, "the request", requested)
		if l.ReleaseReason() != "a deployment" || l.Err() != nil {
			f.t.Errorf("the reason is %q, the lease %v", l.ReleaseReason(), l.Err())
		}
		release(f.t, l)
	}},
	{"a failed call writes nothing", "I7", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		other := lock(f.open())
		release(f.t, held(f.t, other))
		l := held(f.t, lock(f.open()))
		before := value[string](f, rowVersions)
		isBusy(f.t, "a held lock", other)
		var busy *pglock.BusyError
		if _, err := other.Acquire(f.t.Context(), pglock.WithWait(0)); !errors.As(err, &busy) || errors.As(err, new(*pglock.WaitError)) {
			f.t.Errorf("Acquire without a wait: %v", err)
		}
		if after := value[string](f, rowVersions); after != before {
			f.t.Errorf("a failed call changed or locked rows: %s, before %s", after, before)
		}
		f.none("rows in the queue", "SELECT count(*) FROM pglock.lock_waiters")
		release(f.t, l)

		// It would keep the head of the queue, for whom the lock is free, from the row.
		f.sql(`INSERT INTO pglock.lock_waiters (name, client, weight, expires_at, keep_until)
			VALUES ('n', 'head', 1 << 30, clock_timestamp() + interval '1 h', clock_timestamp() + interval '1 h')`)
		before = value[string](f, rowVersions)
		isBusy(f.t, "a free lock with a queue", other)
		if after := value[string](f, rowVersions); after != before {
			f.t.Errorf("a call behind a queue changed or locked rows: %s, before %s", after, before)
		}
		f.sql("DELETE FROM pglock.lock_waiters")
	}},
	{"a guard keeps the lock for its transaction", "I4, I11", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c, other := lock(f.open()), lock(f.open())
		for _, end := range []string{"released", "expired"} {
			l := held(f.t, c, pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(0))
			tx := begin(f.t, f)
			must(f.t, l.Guard(f.t.Context(), tx))
			run(f.t, tx, "SET LOCAL idle_in_transaction_session_timeout = 0") // or the server would end it with the lease
			if end == "released" {
				release(f.t, l)
			} else {
				until(f, "the expiry", 0, "SELECT count(*) FROM pglock.locks_held")
			}
			began := time.Now()
			isBusy(f.t, end, other)
			if took := time.Since(began); took > 4*time.Second {
				f.t.Errorf("%s: a try took %v", end, took)
			}
			must(f.t, tx.Commit(f.t.Context()))
			release(f.t, held(f.t, other))
			tx = begin(f.t, f)
			fails(f.t, end+": a guard of an ended grant", fencing.CheckAll(f.t.Context(), tx, l.Fences()...), fencing.ErrStale)
			must(f.t, tx.Rollback(f.t.Context()))
		}
	}},
	{"a caller that leaves at any moment leaves nothing", "I9", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		c, other := lock(f.open(pglock.WithTTL(time.Hour))), lock(f.open())
		for _, free := range []bool{true, false} {
			l := held(f.t, other)
			if free {
				release(f.t, l)
			}
			for i := range 25 {
				ctx, cancel := context.WithTimeout(f.t.Context(), time.Duration(i)*200*time.Microsecond)
				if l, err := c.Acquire(ctx); err == nil {
					release(f.t, l)
				} else if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
					f.t.Error(err)
				}
				cancel()
			}
			release(f.t, l)
			until(f, "no grant is left", 0, grants)
			until(f, "no row is left in the queue", 0, "SELECT count(*) FROM pglock.lock_waiters")
		}
		release(f.t, held(f.t, c))
	}},
	{"a grant whose answer is lost is found, or revoked when its caller has left", "P14, I9", func(f fixture, lock func(*pglock.Client) pglock.Lock) {
		proxy, far := f.proxied()
		c := lock(far.open(pglock.WithTTL(time.Hour)))
		for _, leaves := range []bool{false, true} {
			release(f.t, held(f.t, c)) // the statements are prepared
			proxy.DropReplies()
			ctx, cancel := context.WithCancel(f.t.Context())
			var l *pglock.Lease
			ended := make(chan error, 1)
			go func() { var err error; l, err = c.Acquire(ctx); ended <- err }()
			pgtest.Eventually(f.t, "the grant", func() bool { return value[int](f, grants) > 0 })
			token := value[int64](f, "SELECT token FROM pglock.locks_held WHERE name = 'n'")
			if leaves {
				cancel()
				fails(f.t, "a caller that leaves", <-ended, context.Canceled)
			}
			proxy.Heal()
			proxy.Sever()
			if !leaves {
				must(f.t, <-ended)
				if int64(l.Token()) != token {
					f.t.Errorf("the lease has token %d, the table %d", l.Token(), token)
				}
				release(f.t, l)
			}
			until(f, "no grant is left", 0, grants)
			cancel()
		}
	}},
}

// grants counts what is held or in use. rowVersions changes with each write and lock of a row.
const (
	grants = "SELECT (SELECT count(*) FROM pglock.lock_permits) + " +
		"(SELECT coalesce(sum(in_use), 0) + count(holder) FROM pglock.distributed_locks)"
	rowVersions = "SELECT string_agg(format('%s %s %s', name, xmin, xmax), ', ' ORDER BY name) FROM pglock.distributed_locks"
)

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
	{"a waiter learns that the number of permits has changed", "Cu testThreadedLeaseIncrease", func(f fixture, c *pglock.Client) {
		l, failed := held(f.t, c.Semaphore("n", 1)), make(chan error, 1)
		other := f.open()
		go func() { _, err := other.Semaphore("n", 1).Acquire(f.t.Context()); failed <- err }()
		pgtest.Eventually(f.t, "the wait", func() bool { return pglock.HeadWaits(other, "n") })
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
		fails(f.t, "a writer", second(w.TryUpgrade(f.t.Context())), pglock.ErrHeldByCaller)
		release(f.t, w)
		release(f.t, r)
		fails(f.t, "after the end", second(r.TryUpgrade(f.t.Context())), pglock.ErrReleased)
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
			pgtest.Eventually(f.t, "a renewal", func() bool { return value[int](f, "SELECT version FROM pglock.distributed_locks") > version })
		}
		f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'n'")
		ends(f.t, "the loss", w.Done())
	}},
	{"of several names one is in the way", "D TestCompositePartialAcquisitionFailure, TestCompositeAcquireThrowsOnTimeout, Cu testSomeLocksLock", func(f fixture, c *pglock.Client) {
		other := f.open()
		both := other.All(other.Lock("n"), other.Semaphore("m", 3).Weight(2), other.Lock("o"))
		release(f.t, held(f.t, both))
		for name, one := range map[string]pglock.Lock{"n": c.Lock("n"), "m": c.Semaphore("m", 3).Weight(2), "o": c.Lock("o")} {
			holder := held(f.t, one)
			before := value[string](f, rowVersions)
			_, err := both.TryAcquire(f.t.Context())
			_ = busyName(f.t, err, name) // fails the test itself
			if after := value[string](f, rowVersions); after != before {
				f.t.Errorf("a failed try changed or locked rows: %s, before %s", after, before)
			}
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
	{"a waiter for several is not overtaken", "", func(f fixture, c *pglock.Client) {
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
			large := waits(f, test.large(f.open(test.opts...)))
			isBusy(f.t, what+": a newcomer", test.few(c))
			few := waits(f, test.few(f.open(test.opts...)))
			// As if there had been room for longer than a silent head delays the queue.
			f.sql("UPDATE pglock.distributed_locks SET ended_at = clock_timestamp() - interval '1 hour' WHERE in_use = 0 AND holder IS NULL")
			rest(f.t, 2*time.Second)
			still(f, large)
			still(f, few)
			release(f.t, holder)
			l := next(f.t, large)
			still(f, few)
			if l.Token() <= holder.Token() {
				f.t.Errorf("%s: tokens %d and %d don't grow", what, holder.Token(), l.Token())
			}
			release(f.t, l)
			release(f.t, next(f.t, few))
		}
	}},
	{"a release lets all in that fit", "", func(f fixture, c *pglock.Client) {
		const n = 4
		all := held(f.t, c.Semaphore("n", n).Weight(n))
		var waiting []<-chan *pglock.Lease
		for range n {
			waiting = append(waiting, waits(f, f.open().Semaphore("n", n)))
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
	{"guards of readers share the lock, and keep a writer out", "", func(f fixture, c *pglock.Client) {
		for range 2 {
			l := held(f.t, c.Reader("n"))
			must(f.t, l.Guard(f.t.Context(), begin(f.t, f)))
			release(f.t, l)
		}
		isBusy(f.t, "a writer beside guarded transactions of readers", c.Writer("n"))
		release(f.t, held(f.t, c.Reader("n")))
	}},
	{"an upgrade overtakes a waiting writer", "", func(f fixture, c *pglock.Client) {
		r := held(f.t, c.Reader("n"))
		waiting := waits(f, f.open().Writer("n"))
		w, err := r.TryUpgrade(f.t.Context())
		must(f.t, err)
		still(f, waiting)
		release(f.t, w)
		l := next(f.t, waiting)
		if l.Token() <= w.Token() {
			f.t.Errorf("token %d of the waiting writer is not above %d", l.Token(), w.Token())
		}
		release(f.t, l)
	}},
	{"a lost name does not keep the others", "Cu testSomeReleasesFail, D TestCompositeHandleLostToken", func(f fixture, c *pglock.Client) {
		l := held(f.t, c.All(c.Lock("n"), c.Lock("m"), c.Lock("o")))
		must(f.t, f.open().Revoke(f.t.Context(), "m", l.Token(), "test"))
		fails(f.t, "a guard of the rest", l.Guard(f.t.Context(), begin(f.t, f)), fencing.ErrStale)
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
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c.test(f, f.open())
		})
	}
}
