package leasetable_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

func semaphore(t *testing.T, c *leasetable.Client, name string, n int) *leasetable.Semaphore {
	t.Helper()
	s, err := c.Semaphore(name, n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rwlock(t *testing.T, c *leasetable.Client, name string) *leasetable.RWLock {
	t.Helper()
	l, err := c.RWLock(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// permits acquires without waiting.
func permits(t *testing.T, s *leasetable.Semaphore, weight int, opts ...leasetable.LeaseOption) *leasetable.Lease {
	t.Helper()
	l, err := s.TryAcquire(t.Context(), weight, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%d): %v", weight, err)
	}
	return l
}

// noPermits fails the test if permits are granted.
func noPermits(t *testing.T, s *leasetable.Semaphore, weight int) {
	t.Helper()
	_, err := s.TryAcquire(t.Context(), weight)
	var busy *leasetable.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Fatalf("TryAcquire(%d): %v, want a *BusyError", weight, err)
	}
}

func TestSemaphoreCountsWeights(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, other := semaphore(t, f.open(leasetable.WithHolder("A")), "s", 3), semaphore(t, f.open(), "s", 3)
	one, two := permits(t, s, 1, leasetable.WithTTL(time.Minute)), permits(t, other, 2)
	if two.Token() <= one.Token() {
		t.Errorf("tokens %d and %d don't grow", one.Token(), two.Token())
	}
	var busy *leasetable.BusyError
	if _, err := other.TryAcquire(t.Context(), 1); !errors.As(err, &busy) || busy.Holder == "" || busy.Remaining <= 0 {
		t.Errorf("%v: want the holder whose lease ends first", err)
	}
	release(t, one)
	noPermits(t, s, 2)
	release(t, permits(t, s, 1))
	release(t, two)
	release(t, two) // again
	all := permits(t, s, 3)
	noPermits(t, other, 1)
	release(t, all)
	release(t, permits(t, other, 1))
	if n := value[int](f, "SELECT in_use FROM pglock.distributed_locks"); n != 0 {
		t.Errorf("%d permits are in use", n)
	}
}

// TestI7_LosingAPermitIsFree: a failed try changes no row and locks none.
func TestI7_LosingAPermitIsFree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 1)
	gate := func() string {
		return value[string](f, "SELECT format('%s %s', xmin, xmax) FROM pglock.distributed_locks")
	}
	for _, weight := range []int{1} {
		l := permits(t, s, weight)
		before := gate()
		noPermits(t, s, 1)
		if after := gate(); after != before {
			t.Errorf("a failed try changed the gate: xmin and xmax were %s, are %s", before, after)
		}
		release(t, l)
	}
	two := semaphore(t, f.open(), "two", 2)
	l := permits(t, two, 1)
	before := value[string](f, "SELECT format('%s %s', xmin, xmax) FROM pglock.distributed_locks WHERE name = 'two'")
	noPermits(t, two, 2)
	if after := value[string](f, "SELECT format('%s %s', xmin, xmax) FROM pglock.distributed_locks WHERE name = 'two'"); after != before {
		t.Errorf("a failed try changed the gate: xmin and xmax were %s, are %s", before, after)
	}
	release(t, l)
}

// TestI1_SemaphoreNeverGrantsTooMany: workers of several clients hold permits of random weight. The
// sum is never above the capacity. The control, with a capacity of twice as many, is.
func TestI1_SemaphoreNeverGrantsTooMany(t *testing.T) {
	t.Parallel()
	const clients, workers, rounds, limit = 4, 5, 12, 5
	f := newFixture(t)
	run := func(name string, capacity int, enough int64, pause time.Duration) (most int64) {
		var held, highest atomic.Int64
		var wg sync.WaitGroup
		for range clients {
			s := semaphore(t, f.open(), name, capacity)
			for range workers {
				wg.Go(func() {
					for range rounds {
						weight := 1 + rand.N(3)
						l, err := s.Acquire(t.Context(), weight)
						if err != nil {
							t.Error(err)
							return
						}
						now := held.Add(int64(weight))
						for old := highest.Load(); now > old && !highest.CompareAndSwap(old, now); old = highest.Load() {
						}
						for until := time.Now().Add(pause); highest.Load() < enough && time.Now().Before(until); {
							<-time.After(time.Millisecond) // others may come in
						}
						held.Add(-int64(weight))
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		return highest.Load()
	}
	if most := run("s", limit, math.MaxInt64, time.Millisecond); most > limit || most < 3 {
		t.Errorf("%d permits of %d were held at the same time", most, limit)
	}
	if most := run("control", 2*limit, limit+1, time.Second); most <= limit {
		t.Errorf("control: with %d permits only %d were held at the same time", 2*limit, most)
	}
	if n := value[int](f, "SELECT sum(in_use) FROM pglock.distributed_locks"); n != 0 {
		t.Errorf("%d permits are in use", n)
	}
}

// TestSemaphoreIsFair: a waiter for many permits is not overtaken by later ones for few, although
// there is room for these.
func TestSemaphoreIsFair(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := semaphore(t, f.open(), "s", 3), semaphore(t, f.open(), "s", 3), semaphore(t, f.open(), "s", 3)
	first := permits(t, a, 1)
	type result struct {
		who  string
		l    *leasetable.Lease
		err  error
		when time.Time
	}
	granted := make(chan result, 2)
	wait := func(who string, s *leasetable.Semaphore, weight int) {
		go func() {
			l, err := s.Acquire(t.Context(), weight)
			granted <- result{who, l, err, time.Now()}
		}()
		n := map[string]int{"many": 1, "few": 2}[who]
		pgtest.Eventually(t, 20*time.Second, who+" has a ticket", func() bool {
			return value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE expires_at > clock_timestamp()") == n
		})
	}
	wait("many", b, 3)
	wait("few", c, 1)
	noPermits(t, a, 1)
	select {
	case got := <-granted:
		t.Fatalf("%s was granted: %v", got.who, got.err)
	case <-time.After(2 * time.Second): // longer than a silent head delays the queue
	}
	release(t, first)
	for _, want := range []string{"many", "few"} {
		select {
		case got := <-granted:
			if got.who != want || got.err != nil {
				t.Fatalf("%s was granted, %v; want %s", got.who, got.err, want)
			}
			release(t, got.l)
		case <-time.After(30 * time.Second):
			t.Fatalf("%s was not granted", want)
		}
	}
}

// TestSemaphoreChain: a release of many permits lets all waiters in that fit.
func TestSemaphoreChain(t *testing.T) {
	t.Parallel()
	const n = 6
	f := newFixture(t)
	all := permits(t, semaphore(t, f.open(), "s", n), n)
	var wg sync.WaitGroup
	var inside sync.WaitGroup
	inside.Add(n)
	for i := range n {
		s := semaphore(t, f.open(), "s", n)
		wg.Go(func() {
			l, err := s.Acquire(t.Context(), 1)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				inside.Done()
				return
			}
			inside.Done()
			inside.Wait() // all of them hold at the same time
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	pgtest.Eventually(t, 20*time.Second, "tickets", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == n
	})
	release(t, all)
	wg.Wait()
}

// TestExpiredPermitsAreFree: the permits of a dead holder are free when its TTL is over, and a
// waiter gets them.
func TestExpiredPermitsAreFree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 2)
	dead := permits(t, s, 2-1, leasetable.WithTTL(500*time.Millisecond), leasetable.WithoutRenewal())
	live := permits(t, s, 1)
	l, err := s.Acquire(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(dead.Err(), leasetable.ErrLost) {
		t.Errorf("the permit was granted again while its first holder trusts it: %v", dead.Err())
	}
	if l.Token() <= live.Token() {
		t.Errorf("tokens %d and %d don't grow", live.Token(), l.Token())
	}
	release(t, l)
	release(t, live)
}

// TestPermitsAreRenewed: a permit lives longer than its TTL, beside a lease of the same client.
func TestPermitsAreRenewed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(leasetable.WithTTL(600 * time.Millisecond))
	l, lease := permits(t, semaphore(t, c, "s", 2), 1), try(t, c, "n")
	pgtest.Eventually(t, 20*time.Second, "renewals", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_permits WHERE version > 3") == 1
	})
	if err := l.Extend(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if err := errors.Join(l.Err(), lease.Err()); err != nil {
		t.Error(err)
	}
	f.sql("DELETE FROM pglock.lock_permits")
	pgtest.Eventually(t, 20*time.Second, "the loss", func() bool { return errors.Is(l.Err(), leasetable.ErrLost) })
	if err := l.Release(t.Context()); !errors.Is(err, leasetable.ErrLost) {
		t.Errorf("Release of a lost permit: %v", err)
	}
	release(t, lease)
}

// TestI4_GuardedPermit: a permit that a guarded transaction uses counts until that transaction ends,
// although it has expired or was released. A permit that has ended is refused.
func TestI4_GuardedPermit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 2)
	for _, end := range []string{"released", "expired"} {
		l := permits(t, s, 1, leasetable.WithTTL(3*time.Second), leasetable.WithoutRenewal())
		tx := begin(t, f)
		// The server would end an idle transaction when the lease ends.
		if err := l.Guard(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
			t.Fatal(err)
		}
		if end == "released" {
			release(t, l)
		} else {
			<-l.Done()
			pgtest.Eventually(t, 10*time.Second, "the expiry", func() bool {
				return value[bool](f, "SELECT bool_and(expires_at < clock_timestamp()) FROM pglock.lock_permits")
			})
		}
		noPermits(t, s, 2) // it counts
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, permits(t, s, 2))
		if err := fencing.Check(t.Context(), begin(t, f), l.Fence()); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: the guard of an ended permit: %v", end, err)
		}
	}
}

// begin returns a transaction that the end of the test rolls back.
func begin(t *testing.T, f fixture) pgx.Tx {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// TestBindOfPermits: concurrent holders have no order, so their grants can't be bound. A grant of
// all permits can.
func TestBindOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 2)
	shared := permits(t, s, 1)
	if err := shared.Bind(t.Context(), begin(t, f)); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("Lease.Bind: %v", err)
	}
	if err := fencing.Bind(t.Context(), begin(t, f), shared.Fence()); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("fencing.Bind: %v", err)
	}
	if err := shared.Guard(t.Context(), begin(t, f)); err != nil {
		t.Errorf("Guard: %v", err)
	}
	release(t, shared)
	rw := rwlock(t, f.open(), "rw")
	writer, err := rw.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Bind(t.Context(), begin(t, f)); err != nil {
		t.Errorf("Bind of a writer: %v", err)
	}
}

func TestKindsDoNotMix(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, try(t, c, "lease"))
	release(t, permits(t, semaphore(t, c, "semaphore", 3), 1))
	l, err := rwlock(t, c, "rw").TryRLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, l)
	for name, tries := range map[string]map[string]func(name string) error{
		"lease": {
			"semaphore": func(name string) error { _, err := semaphore(t, c, name, 3).TryAcquire(t.Context(), 1); return err },
			"rw":        func(name string) error { _, err := rwlock(t, c, name).Lock(t.Context()); return err },
			"resize":    func(name string) error { _, err := semaphore(t, c, name, 3).Resize(t.Context(), 4); return err },
		},
		"semaphore": {
			"lease":   func(name string) error { _, err := c.Acquire(t.Context(), name); return err },
			"try":     func(name string) error { _, err := c.TryAcquire(t.Context(), name); return err },
			"rw":      func(name string) error { _, err := rwlock(t, c, name).RLock(t.Context()); return err },
			"another": func(name string) error { _, err := semaphore(t, c, name, 4).Acquire(t.Context(), 1); return err },
		},
		"rw": {
			"resize":    func(name string) error { _, err := semaphore(t, c, name, 3).Resize(t.Context(), 4); return err },
			"lease":     func(name string) error { _, err := c.TryAcquire(t.Context(), name); return err },
			"semaphore": func(name string) error { _, err := semaphore(t, c, name, 3).Acquire(t.Context(), 1); return err },
		},
	} {
		for what, attempt := range tries {
			err := attempt(name)
			var kind *leasetable.KindError
			if !errors.Is(err, leasetable.ErrKind) || !errors.As(err, &kind) || kind.Name != name || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s as %s: %v", name, what, err)
			}
		}
	}
	if l, err = rwlock(t, c, "rw").TryRLock(t.Context()); err != nil {
		t.Fatalf("the refused calls have changed the lock: %v", err)
	}
	if _, err := c.TryAcquire(l.Context(), "rw", leasetable.WithJoin()); !errors.Is(err, leasetable.ErrKind) {
		t.Errorf("a lease with one holder joins a reader: %v", err)
	}
	release(t, l)
}

func TestSemaphoreBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, n := range []int{0, -1, leasetable.MaxPermits + 1} {
		if _, err := c.Semaphore("s", n); !errors.Is(err, leasetable.ErrInvalidOption) {
			t.Errorf("%d permits: %v", n, err)
		}
	}
	if _, err := c.Semaphore("", 1); !errors.Is(err, leasetable.ErrInvalidName) {
		t.Errorf("no name: %v", err)
	}
	if _, err := c.RWLock("a\x00b"); !errors.Is(err, leasetable.ErrInvalidName) {
		t.Errorf("NUL in the name: %v", err)
	}
	if _, err := semaphore(t, c, "s", 3).Acquire(t.Context(), 1, leasetable.WithMinHold(time.Minute)); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("WithMinHold: %v", err)
	}
	if _, err := semaphore(t, c, "s", 3).Acquire(t.Context(), 1, leasetable.WithJoin()); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("WithJoin: %v", err)
	}
	for _, weight := range []int{0, -1, 4} {
		if _, err := semaphore(t, c, "s", 3).Acquire(t.Context(), weight); !errors.Is(err, leasetable.ErrInvalidOption) {
			t.Errorf("weight %d: %v", weight, err)
		}
	}
}

// TestResize: shrinking lets holders finish, growing wakes waiters.
func TestResize(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 3)
	a, b := permits(t, s, 1), permits(t, s, 2)
	one, err := s.Resize(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryAcquire(t.Context(), 1); !errors.Is(err, leasetable.ErrKind) {
		t.Errorf("the old number: %v", err)
	}
	noPermits(t, one, 1)
	release(t, b)
	noPermits(t, one, 1)
	release(t, a)
	l := permits(t, one, 1)
	release(t, l)
	two, err := one.Resize(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	a, b = permits(t, two, 1), permits(t, two, 1)
	noPermits(t, two, 1)
	release(t, a)
	release(t, b)
}

// TestPermitsSurviveALostAnswer: a caller that leaves, at any moment, leaves no permit behind.
func TestI9_ACallerLeavesNoPermit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	s := semaphore(t, c, "s", 2)
	release(t, permits(t, s, 1))
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		l, err := s.Acquire(ctx, 1, leasetable.WithTTL(time.Hour))
		cancel()
		if err == nil {
			release(t, l)
		} else if !errors.Is(err, leasetable.ErrNotAcquired) {
			t.Fatal(err)
		}
	}
	pgtest.Eventually(t, 30*time.Second, "all permits are free", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_permits") == 0 && value[int](f, "SELECT in_use FROM pglock.distributed_locks") == 0
	})
}

// TestReadersAndWriters: readers share, writers don't, and a waiting writer stops new readers.
func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(t, f.open(), "rw"), rwlock(t, f.open(), "rw")
	r1, err := a.RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r2, err := b.TryRLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryLock(t.Context()); !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a writer beside readers: %v", err)
	}
	writer := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := b.Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		writer <- l
	}()
	pgtest.Eventually(t, 20*time.Second, "the writer has a ticket", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 1
	})
	if _, err := a.TryRLock(t.Context()); !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a reader behind a waiting writer: %v", err)
	}
	release(t, r1)
	release(t, r2)
	w := <-writer
	if w.Token() <= max(r1.Token(), r2.Token()) {
		t.Errorf("the writer's token %d is not above those of the readers, %d and %d", w.Token(), r1.Token(), r2.Token())
	}
	if _, err := a.TryRLock(t.Context()); !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a reader beside a writer: %v", err)
	}
	release(t, w)
	r1, err = a.TryRLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, r1)
}

// TestGuardsOfReaders: guards of readers don't block each other, and keep a writer out.
func TestGuardsOfReaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rw := rwlock(t, f.open(), "rw")
	var readers [2]*leasetable.Lease
	for i := range readers {
		var err error
		if readers[i], err = rw.TryRLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := readers[i].Guard(t.Context(), begin(t, f)); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range readers {
		release(t, l)
	}
	if _, err := rw.TryLock(t.Context()); !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a writer beside guarded transactions of readers: %v", err)
	}
	l, err := rw.TryRLock(t.Context())
	if err != nil {
		t.Errorf("another reader: %v", err)
	} else {
		release(t, l)
	}
}

// TestPruneOfPermits: a name with a live permit is kept; an idle one goes, with its dead permits.
func TestPruneOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, dead := f.open(leasetable.WithoutPruning()), f.openUnclosed()
	live := permits(t, semaphore(t, c, "live", 2), 1)
	permits(t, semaphore(t, dead, "dead", 2), 1)
	_ = dead.Close(t.Context())
	f.sql("INSERT INTO pglock.lock_permits VALUES ('dead', 1, 1, 1, clock_timestamp(), clock_timestamp(), gen_random_uuid(), 'h')")
	f.sql("UPDATE pglock.lock_permits SET expires_at = clock_timestamp() - interval '3 hours' WHERE name = 'dead'")
	f.sql("UPDATE pglock.distributed_locks SET acquired_at = clock_timestamp() - interval '3 hours', ended_at = NULL")
	if n, err := c.Prune(t.Context(), 2*time.Hour); err != nil || n != 1 {
		t.Errorf("pruned %d names, %v", n, err)
	}
	if got := value[string](f, "SELECT string_agg(name, ' ') FROM pglock.lock_permits"); got != "live" {
		t.Errorf("permits of %s are left", got)
	}
	release(t, live)
}

// TestSnapshotOfPermits is about the trap of a sum in the statement that waits for the gate: it would
// not see the permit that the previous holder of the gate has just committed.
func TestSnapshotOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 1)
	release(t, permits(t, s, 1)) // creates the name; a weight of all permits is exclusive
	two := semaphore(t, f.open(), "two", 2)
	release(t, permits(t, two, 1))
	const acquire = "SELECT outcome FROM pglock.acquire_permits('two', 2, 1, gen_random_uuid(), 'x', '{}', 60000000, 9223372036854775807, true)"
	first := permits(t, two, 1)
	tx := begin(t, f)
	var outcome string
	if err := tx.QueryRow(t.Context(), f.named(acquire)).Scan(&outcome); err != nil || outcome != "granted" {
		t.Fatalf("%s, %v", outcome, err)
	}
	second := make(chan string, 1)
	go func() {
		var outcome string
		err := f.pool.QueryRow(t.Context(), f.named(acquire)).Scan(&outcome)
		second <- fmt.Sprint(outcome, err)
	}()
	pgtest.Eventually(t, 20*time.Second, "the second waits for the gate", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-second; got != "busy<nil>" {
		t.Errorf("the third permit of two: %s", got)
	}
	release(t, first)
}

// TestAGuardDoesNotLetNewcomersPass: a waiting writer keeps its turn while a guarded transaction uses
// the permit of a reader that was released.
func TestAGuardDoesNotLetNewcomersPass(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(t, f.open(), "rw"), rwlock(t, f.open(), "rw")
	reader, err := a.RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writer := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := b.Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		writer <- l
	}()
	pgtest.Eventually(t, 20*time.Second, "the writer has a ticket", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 1
	})
	tx := begin(t, f)
	if err := reader.Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	release(t, reader)
	// As if the queue had stood still for longer than a silent head delays it.
	f.sql("UPDATE pglock.distributed_locks SET room_since = clock_timestamp() - interval '1 minute', ended_at = clock_timestamp() - interval '1 minute'")
	if l, err := a.TryRLock(t.Context()); !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("a newcomer overtook the writer: %v, %v", l, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case l := <-writer:
		release(t, l)
	case <-time.After(30 * time.Second):
		t.Fatal("the writer was not granted")
	}
}

// TestP67_ADeadWriterDoesNotBlockReaders: a writer that waits behind a reader keeps newcomers out as long as its process
// lives, through more than one lifetime of its ticket, and for a few seconds longer.
func TestP67_ADeadWriterDoesNotBlockReaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	reader, err := rwlock(t, f.open(), "rw").RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, reader)
	ctx, cancel := context.WithCancel(t.Context())
	writer := f.through(proxy.URL(pgtest.URL(t))).openUnclosed()
	gone := make(chan error, 1)
	go func() {
		_, err := rwlock(t, writer, "rw").Lock(ctx)
		gone <- err
	}()
	refreshed := func() (at time.Time) {
		_ = f.pool.QueryRow(t.Context(), f.named("SELECT expires_at FROM pglock.lock_waiters WHERE weight > 1")).Scan(&at)
		return at
	}
	pgtest.Eventually(t, 20*time.Second, "the writer has a ticket", func() bool { return !refreshed().IsZero() })
	newcomer := rwlock(t, f.open(), "rw")
	first := refreshed()
	pgtest.Eventually(t, time.Minute, "the ticket outlives its first lifetime twice", func() bool {
		before := refreshed()
		l, err := newcomer.TryRLock(t.Context())
		switch {
		case err == nil && refreshed() != before: // the machine was so slow that the ticket had expired
			release(t, l)
		case !errors.Is(err, leasetable.ErrNotAcquired):
			t.Fatalf("a newcomer overtook a living writer: %v, %v", l, err)
		}
		return refreshed().Sub(first) > 6*time.Second
	})
	proxy.Cut()
	died := time.Now()
	l, err := newcomer.RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(died); took > 10*time.Second { // a ticket for one permit lives for 15 s
		t.Errorf("a dead writer kept a reader out for %v", took)
	}
	release(t, l)
	proxy.Heal()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_ = writer.Close(t.Context())
}

// TestResizeSharesAnExclusiveGrant: a holder of all permits keeps as many as it has, and others are
// granted those that were added.
func TestResizeSharesAnExclusiveGrant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(leasetable.WithTTL(2 * time.Second))
	two := semaphore(t, c, "s", 2)
	all := permits(t, two, 2)
	three, err := two.Resize(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	one := permits(t, three, 1)
	noPermits(t, three, 1)
	if err := all.Bind(t.Context(), begin(t, f)); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("Bind of a grant that others share now: %v", err)
	}
	pgtest.Eventually(t, 20*time.Second, "renewals", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_permits WHERE version > 2") == 2
	})
	release(t, all)
	release(t, permits(t, three, 2))
	release(t, one)
	if n := value[int](f, "SELECT in_use FROM pglock.distributed_locks"); n != 0 {
		t.Errorf("%d permits are in use", n)
	}
}

// TestAReleaseMeetsARenewal: a permit that a renewal has locked at the moment of its release is free
// at once, unlike one that a guarded transaction uses.
func TestAReleaseMeetsARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 2)
	l := permits(t, s, 1)
	renewal := begin(t, f)
	if _, err := renewal.Exec(t.Context(), f.named("SELECT FROM pglock.lock_permits FOR NO KEY UPDATE")); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context()) }()
	pgtest.Eventually(t, 20*time.Second, "the release waits for the renewal", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')") > 0
	})
	if err := renewal.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if n := value[int](f, "SELECT in_use FROM pglock.distributed_locks") + value[int](f, "SELECT count(*) FROM pglock.lock_permits"); n != 0 {
		t.Errorf("%d: the permit is not free", n)
	}
}

// TestAReleaseFreesExpiredPermits: a release frees what other, dead holders have left, so a waiter
// that needs both is woken by it.
func TestAReleaseFreesExpiredPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := semaphore(t, f.open(), "s", 3)
	permits(t, s, 1, leasetable.WithTTL(time.Second), leasetable.WithoutRenewal())
	live := permits(t, s, 1)
	pgtest.Eventually(t, 10*time.Second, "the expiry", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_permits WHERE expires_at < clock_timestamp()") == 1
	})
	if n := value[int](f, "SELECT in_use FROM pglock.distributed_locks"); n != 2 {
		t.Fatalf("%d permits are in use before the release", n)
	}
	release(t, live)
	if n := value[int](f, "SELECT in_use FROM pglock.distributed_locks"); n != 0 {
		t.Errorf("%d permits are in use after the release", n)
	}
}

const acquirePermitsSQL = "SELECT outcome, token FROM pglock.acquire_permits('s', 2, $1::int, $2::text::uuid, 'x', '{}', 60000000, 9223372036854775807, true)"

// TestP49_ARepeatedRequestForPermitsIsDurable: the repetition of a request finds its own grant, and
// commits a change of its own after it, durably.
func TestP49_ARepeatedRequestForPermitsIsDurable(t *testing.T) {
	t.Parallel()
	const request = "00000000-0000-4000-8000-000000000001"
	f := newFixture(t)
	for _, weight := range []int{1, 2} {
		f.sql("DELETE FROM pglock.lock_permits")
		f.sql("DELETE FROM pglock.distributed_locks")
		var token, version [2]int64
		for i := range token {
			tx := begin(t, f)
			var outcome, durable string
			if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = off; SET LOCAL client_min_messages = error"); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(t.Context(), f.named(acquirePermitsSQL), weight, request).Scan(&outcome, &token[i]); err != nil || outcome != "granted" {
				t.Fatalf("weight %d: %s, %v", weight, outcome, err)
			}
			err := tx.QueryRow(t.Context(), "SELECT current_setting('synchronous_commit') || ' ' || current_setting('client_min_messages')").Scan(&durable)
			if err != nil || durable != "on warning" {
				t.Errorf("weight %d, attempt %d commits with %s, %v", weight, i, durable, err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			version[i] = value[int64](f, "SELECT version FROM pglock.distributed_locks")
		}
		if token[0] != token[1] || version[1] <= version[0] {
			t.Errorf("weight %d: tokens %v, versions of the gate %v", weight, token, version)
		}
	}
}

// TestADuplicateAfterTheRelease: a repeated attempt that reaches the server after the release grants
// nothing. If other permits were released meanwhile, the server can't tell, and the client revokes
// what it grants.
func TestADuplicateAfterTheRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	s := semaphore(t, c, "s", 2)
	first := permits(t, s, 1)
	request := value[string](f, "SELECT request::text FROM pglock.lock_permits")
	duplicate := func() (outcome string) {
		var token int64
		if err := f.pool.QueryRow(t.Context(), f.named(acquirePermitsSQL), 1, request).Scan(&outcome, &token); err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	leasetable.Repeated(first)
	release(t, first)
	if got := duplicate(); got != "spent" {
		t.Errorf("after its release a request is %s", got)
	}
	release(t, permits(t, s, 1))
	if got := duplicate(); got != "granted" {
		t.Errorf("after another release it is %s", got)
	}
	pgtest.Eventually(t, 20*time.Second, "the client revokes it", func() bool {
		return value[int](f, "SELECT in_use FROM pglock.distributed_locks") == 0
	})
}

// TestAHeadThatLeavesIsNotTheNextOne: the time after which the queue skips a silent head begins anew
// for the waiter behind a head that leaves or dies. A newcomer does not overtake it at once.
func TestAHeadThatLeavesIsNotTheNextOne(t *testing.T) {
	t.Parallel()
	for what, leave := range map[string]string{
		"leaves": "", // by the client's own statement
		"dies":   "UPDATE pglock.lock_waiters SET expires_at = clock_timestamp() WHERE weight = 2",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a := semaphore(t, f.open(), "s", 3)
			held := permits(t, a, 2)
			long := "clock_timestamp() - interval '1 minute'"
			// The head needs two permits and is alive in name only, as is the one behind it.
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at, weight) VALUES ('s', 'head', now() + interval '1 hour', 2)")
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at, weight) VALUES ('s', 'next', now() + interval '1 hour', 1)")
			f.sql("UPDATE pglock.distributed_locks SET acquired_at = " + long + ", room_since = " + long + ", ended_at = " + long)
			noPermits(t, a, 1) // the head does not fit: nobody passes
			if leave == "" {
				f.sql(leasetable.LeaveQueueSQL, []string{"s"}, "head", int64(-1), false)
			} else {
				f.sql(leave)
			}
			noPermits(t, a, 1) // the next one fits, and has its time from now on
			pgtest.Eventually(t, 10*time.Second, "a silent head is skipped", func() bool {
				l, err := a.TryAcquire(t.Context(), 1)
				if err == nil {
					release(t, l)
				}
				return err == nil
			})
			release(t, held)
		})
	}
}

// TestASuccessorHasItsOwnWeight: a waiter that takes over the ticket of another one of its process is
// in the queue with the number of permits that it needs itself.
func TestASuccessorHasItsOwnWeight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := semaphore(t, f.open(), "s", 3), semaphore(t, f.open(), "s", 3)
	held := permits(t, a, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error, 1)
	go func() { _, err := b.Acquire(ctx, 3); left <- err }()
	f.waiters(1)
	granted := make(chan *leasetable.Lease, 1)
	go func() {
		l, err := b.Acquire(t.Context(), 2)
		if err != nil {
			t.Error(err)
		}
		granted <- l
	}()
	weight := func() int { return value[int](f, "SELECT weight FROM pglock.lock_waiters") }
	pgtest.Eventually(t, 10*time.Second, "the second waiter", func() bool { return leasetable.Waiting(leasetable.ClientOf(b), "s") == 2 })
	if n := weight(); n != 3 {
		t.Fatalf("the head needs %d permits", n)
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the weight of the successor", func() bool { return weight() == 2 })
	release(t, held)
	release(t, <-granted)
}

// TestNestedPermitsOfAnotherClient: a nested call through another client is recognized as nested.
func TestNestedPermitsOfAnotherClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(t, f.open(), "rw"), rwlock(t, f.open(), "rw")
	r := read(t, a)
	if _, err := b.Lock(r.Context()); !errors.Is(err, leasetable.ErrHeldByCaller) {
		t.Errorf("a writer inside its own reader: %v", err)
	}
	joined, err := b.TryRLock(r.Context(), leasetable.WithJoin())
	if err != nil || joined.Token() != r.Token() {
		t.Fatalf("a reader joins: %v", err)
	}
	release(t, joined)
	release(t, r)
}
