package pglock_test

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

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// rw is a readers–writer lock.
type rw struct{ read, write pglock.Lock }

func rwlock(c *pglock.Client, name string) rw { return rw{c.Reader(name), c.Writer(name)} }

// permits acquires without waiting.
func permits(t *testing.T, s pglock.Lock, weight int, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	l, err := s.Weight(weight).TryAcquire(t.Context(), opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%d): %v", weight, err)
	}
	return l
}

// noPermits fails the test if permits are granted.
func noPermits(t *testing.T, s pglock.Lock, weight int) {
	t.Helper()
	_, err := s.Weight(weight).TryAcquire(t.Context())
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Fatalf("TryAcquire(%d): %v, want a *BusyError", weight, err)
	}
}

func TestSemaphoreCountsWeights(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, other := f.open(pglock.WithHolder("A")).Semaphore("s", 3), f.open().Semaphore("s", 3)
	one, two := permits(t, s, 1, pglock.WithTTL(time.Minute)), permits(t, other, 2)
	if two.Token() <= one.Token() {
		t.Errorf("tokens %d and %d don't grow", one.Token(), two.Token())
	}
	var busy *pglock.BusyError
	if _, err := other.TryAcquire(t.Context()); !errors.As(err, &busy) || busy.Holder == "" || busy.Remaining <= 0 {
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
	s := f.open().Semaphore("s", 1)
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
	two := f.open().Semaphore("two", 2)
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
			s := f.open().Semaphore(name, capacity)
			for range workers {
				wg.Go(func() {
					for range rounds {
						weight := 1 + rand.N(3)
						l, err := s.Weight(weight).Acquire(t.Context())
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
	a, b, c := f.open().Semaphore("s", 3), f.open().Semaphore("s", 3), f.open().Semaphore("s", 3)
	first := permits(t, a, 1)
	type result struct {
		who  string
		l    *pglock.Lease
		err  error
		when time.Time
	}
	granted := make(chan result, 2)
	wait := func(who string, s pglock.Lock, weight int) {
		go func() {
			l, err := s.Weight(weight).Acquire(t.Context())
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
	all := permits(t, f.open().Semaphore("s", n), n)
	var wg sync.WaitGroup
	var inside sync.WaitGroup
	inside.Add(n)
	for i := range n {
		s := f.open().Semaphore("s", n)
		wg.Go(func() {
			l, err := s.Acquire(t.Context())
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
	s := f.open().Semaphore("s", 2)
	dead := permits(t, s, 2-1, pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
	live := permits(t, s, 1)
	l, err := s.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(dead.Err(), pglock.ErrLost) {
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
	c := f.open(pglock.WithTTL(600 * time.Millisecond))
	l, lease := permits(t, c.Semaphore("s", 2), 1), try(t, c, "n")
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
	pgtest.Eventually(t, 20*time.Second, "the loss", func() bool { return errors.Is(l.Err(), pglock.ErrLost) })
	if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Release of a lost permit: %v", err)
	}
	release(t, lease)
}

// TestI4_GuardedPermit: a permit that a guarded transaction uses counts until that transaction ends,
// although it has expired or was released. A permit that has ended is refused.
func TestI4_GuardedPermit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 2)
	for _, end := range []string{"released", "expired"} {
		l := permits(t, s, 1, pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(0))
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

// TestBindOfPermits: concurrent holders have no order, so their grants can't be bound. A grant of
// all permits can.
func TestBindOfPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.open().Semaphore("s", 2)
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
	rw := rwlock(f.open(), "rw")
	writer, err := rw.write.TryAcquire(t.Context())
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
	release(t, permits(t, c.Semaphore("semaphore", 3), 1))
	l, err := rwlock(c, "rw").read.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, l)
	for name, tries := range map[string]map[string]func(name string) error{
		"lease": {
			"semaphore": func(name string) error { _, err := c.Semaphore(name, 3).TryAcquire(t.Context()); return err },
			"rw":        func(name string) error { _, err := rwlock(c, name).write.Acquire(t.Context()); return err },
			"resize":    func(name string) error { return c.Resize(t.Context(), name, 4) },
		},
		"semaphore": {
			"lease":   func(name string) error { _, err := c.Acquire(t.Context(), name); return err },
			"try":     func(name string) error { _, err := c.TryAcquire(t.Context(), name); return err },
			"rw":      func(name string) error { _, err := rwlock(c, name).read.Acquire(t.Context()); return err },
			"another": func(name string) error { _, err := c.Semaphore(name, 4).Acquire(t.Context()); return err },
		},
		"rw": {
			"resize":    func(name string) error { return c.Resize(t.Context(), name, 4) },
			"lease":     func(name string) error { _, err := c.TryAcquire(t.Context(), name); return err },
			"semaphore": func(name string) error { _, err := c.Semaphore(name, 3).Acquire(t.Context()); return err },
		},
	} {
		for what, attempt := range tries {
			err := attempt(name)
			var kind *pglock.KindError
			if !errors.Is(err, pglock.ErrKind) || !errors.As(err, &kind) || kind.Name != name || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s as %s: %v", name, what, err)
			}
		}
	}
	if l, err = rwlock(c, "rw").read.TryAcquire(t.Context()); err != nil {
		t.Fatalf("the refused calls have changed the lock: %v", err)
	}
	if err := c.TryDo(l.Context(), "rw", func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()); !errors.Is(err, pglock.ErrKind) {
		t.Errorf("a lease with one holder joins a reader: %v", err)
	}
	release(t, l)
}

func TestSemaphoreBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for _, n := range []int{0, -1, pglock.MaxPermits + 1} {
		if _, err := c.Semaphore("s", n).Acquire(t.Context()); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%d permits: %v", n, err)
		}
	}
	if _, err := c.Semaphore("", 1).Acquire(t.Context()); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no name: %v", err)
	}
	if _, err := c.Reader("a\x00b").Acquire(t.Context()); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("NUL in the name: %v", err)
	}
	if _, err := c.Semaphore("s", 3).Acquire(t.Context(), pglock.WithMinHold(time.Minute)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("WithMinHold: %v", err)
	}
	if err := c.Semaphore("s", 3).Do(t.Context(), func(context.Context, *pglock.Lease) error { return nil }, pglock.WithJoin()); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("WithJoin: %v", err)
	}
	for _, weight := range []int{0, -1, 4} {
		if _, err := c.Semaphore("s", 3).Weight(weight).Acquire(t.Context()); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("weight %d: %v", weight, err)
		}
	}
}

// TestResize: shrinking lets holders finish, growing wakes waiters.
func TestResize(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	s, one := c.Semaphore("s", 3), c.Semaphore("s", 1)
	a, b := permits(t, s, 1), permits(t, s, 2)
	if err := c.Resize(t.Context(), "s", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrKind) {
		t.Errorf("the old number: %v", err)
	}
	noPermits(t, one, 1)
	release(t, b)
	noPermits(t, one, 1)
	release(t, a)
	l := permits(t, one, 1)
	release(t, l)
	if err := c.Resize(t.Context(), "s", 2); err != nil {
		t.Fatal(err)
	}
	two := c.Semaphore("s", 2)
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
	s := c.Semaphore("s", 2)
	release(t, permits(t, s, 1))
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		l, err := s.Acquire(ctx, pglock.WithTTL(time.Hour))
		cancel()
		if err == nil {
			release(t, l)
		} else if !errors.Is(err, pglock.ErrNotAcquired) {
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
	a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
	r1, err := a.read.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r2, err := b.read.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.write.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a writer beside readers: %v", err)
	}
	writer := make(chan *pglock.Lease, 1)
	go func() {
		l, err := b.write.Acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		writer <- l
	}()
	pgtest.Eventually(t, 20*time.Second, "the writer has a ticket", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 1
	})
	if _, err := a.read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a reader behind a waiting writer: %v", err)
	}
	release(t, r1)
	release(t, r2)
	w := <-writer
	if w.Token() <= max(r1.Token(), r2.Token()) {
		t.Errorf("the writer's token %d is not above those of the readers, %d and %d", w.Token(), r1.Token(), r2.Token())
	}
	if _, err := a.read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a reader beside a writer: %v", err)
	}
	release(t, w)
	r1, err = a.read.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, r1)
}

// TestGuardsOfReaders: guards of readers don't block each other, and keep a writer out.
func TestGuardsOfReaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rw := rwlock(f.open(), "rw")
	var readers [2]*pglock.Lease
	for i := range readers {
		var err error
		if readers[i], err = rw.read.TryAcquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := readers[i].Guard(t.Context(), begin(t, f)); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range readers {
		release(t, l)
	}
	if _, err := rw.write.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a writer beside guarded transactions of readers: %v", err)
	}
	l, err := rw.read.TryAcquire(t.Context())
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
	c, dead := f.open(pglock.WithRetention(0)), f.openUnclosed()
	live := permits(t, c.Semaphore("live", 2), 1)
	permits(t, dead.Semaphore("dead", 2), 1)
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
	s := f.open().Semaphore("s", 1)
	release(t, permits(t, s, 1)) // creates the name; a weight of all permits is exclusive
	two := f.open().Semaphore("two", 2)
	release(t, permits(t, two, 1))
	const acquire = "SELECT outcome FROM pglock.acquire_slots('{two}', '{2}', '{1}', gen_random_uuid(), 'x', '{}', 60000000, 9223372036854775807, true)"
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
	a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
	reader, err := a.read.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writer := make(chan *pglock.Lease, 1)
	go func() {
		l, err := b.write.Acquire(t.Context())
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
	if l, err := a.read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
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
	reader, err := rwlock(f.open(), "rw").read.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release(t, reader)
	ctx, cancel := context.WithCancel(t.Context())
	writer := f.through(proxy.URL(pgtest.URL(t))).openUnclosed()
	gone := make(chan error, 1)
	go func() {
		_, err := rwlock(writer, "rw").write.Acquire(ctx)
		gone <- err
	}()
	refreshed := func() (at time.Time) {
		_ = f.pool.QueryRow(t.Context(), f.named("SELECT expires_at FROM pglock.lock_waiters WHERE weight > 1")).Scan(&at)
		return at
	}
	pgtest.Eventually(t, 20*time.Second, "the writer has a ticket", func() bool { return !refreshed().IsZero() })
	newcomer := rwlock(f.open(), "rw")
	first := refreshed()
	pgtest.Eventually(t, time.Minute, "the ticket outlives its first lifetime twice", func() bool {
		before := refreshed()
		l, err := newcomer.read.TryAcquire(t.Context())
		switch {
		case err == nil && refreshed() != before: // the machine was so slow that the ticket had expired
			release(t, l)
		case !errors.Is(err, pglock.ErrNotAcquired):
			t.Fatalf("a newcomer overtook a living writer: %v, %v", l, err)
		}
		return refreshed().Sub(first) > 6*time.Second
	})
	proxy.Cut()
	died := time.Now()
	l, err := newcomer.read.Acquire(t.Context())
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
	c := f.open(pglock.WithTTL(2 * time.Second))
	all := permits(t, c.Semaphore("s", 2), 2)
	if err := c.Resize(t.Context(), "s", 3); err != nil {
		t.Fatal(err)
	}
	three := c.Semaphore("s", 3)
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
	s := f.open().Semaphore("s", 2)
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
	s := f.open().Semaphore("s", 3)
	permits(t, s, 1, pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
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

const acquirePermitsSQL = "SELECT outcome, token FROM pglock.acquire_slots('{s}', '{2}', ARRAY[$1::int], $2::text::uuid, 'x', '{}', 60000000, 9223372036854775807, true)"

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
	s := c.Semaphore("s", 2)
	first := permits(t, s, 1)
	request := value[string](f, "SELECT request::text FROM pglock.lock_permits")
	duplicate := func() (outcome string) {
		var token int64
		if err := f.pool.QueryRow(t.Context(), f.named(acquirePermitsSQL), 1, request).Scan(&outcome, &token); err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	pglock.Repeated(first)
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
			a := f.open().Semaphore("s", 3)
			held := permits(t, a, 2)
			long := "clock_timestamp() - interval '1 minute'"
			// The head needs two permits and is alive in name only, as is the one behind it.
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at, weight) VALUES ('s', 'head', now() + interval '1 hour', 2)")
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at, weight) VALUES ('s', 'next', now() + interval '1 hour', 1)")
			f.sql("UPDATE pglock.distributed_locks SET acquired_at = " + long + ", room_since = " + long + ", ended_at = " + long)
			noPermits(t, a, 1) // the head does not fit: nobody passes
			if leave == "" {
				f.sql(pglock.LeaveQueueSQL, []string{"s"}, "head", int64(-1), false)
			} else {
				f.sql(leave)
			}
			noPermits(t, a, 1) // the next one fits, and has its time from now on
			pgtest.Eventually(t, 10*time.Second, "a silent head is skipped", func() bool {
				l, err := a.TryAcquire(t.Context())
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
	second := f.open()
	a, b := f.open().Semaphore("s", 3), second.Semaphore("s", 3)
	held := permits(t, a, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error, 1)
	go func() { _, err := b.Weight(3).Acquire(ctx); left <- err }()
	f.waiters(1)
	granted := make(chan *pglock.Lease, 1)
	go func() {
		l, err := b.Weight(2).Acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		granted <- l
	}()
	weight := func() int { return value[int](f, "SELECT weight FROM pglock.lock_waiters") }
	pgtest.Eventually(t, 10*time.Second, "the second waiter", func() bool { return pglock.Waiting(second, "s") == 2 })
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
	a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
	r := read(t, a)
	if _, err := b.write.Acquire(r.Context()); !errors.Is(err, pglock.ErrHeldByCaller) {
		t.Errorf("a writer inside its own reader: %v", err)
	}
	err := b.read.TryDo(r.Context(), func(_ context.Context, joined *pglock.Lease) error {
		if joined != r {
			t.Errorf("the joined lease has the token %d", joined.Token())
		}
		return nil
	}, pglock.WithJoin())
	if err != nil {
		t.Errorf("a reader joins: %v", err)
	}
	release(t, r)
}
