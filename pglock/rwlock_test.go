package pglock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func read(t *testing.T, l rw, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	lease, err := l.read.TryAcquire(t.Context(), opts...)
	if err != nil {
		t.Fatalf("TryRLock: %v", err)
	}
	return lease
}

func write(t *testing.T, l rw, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	lease, err := l.write.TryAcquire(t.Context(), opts...)
	if err != nil {
		t.Fatalf("TryLock: %v", err)
	}
	return lease
}

func downgrade(t *testing.T, l *pglock.Lease) {
	t.Helper()
	if err := l.Downgrade(t.Context()); err != nil {
		t.Fatalf("Downgrade: %v", err)
	}
}

// waiters waits until n clients have a ticket.
func (f fixture) waiters(n int) {
	f.t.Helper()
	pgtest.Eventually(f.t, 20*time.Second, "tickets", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE expires_at > clock_timestamp()") == n
	})
}

// TestDowngrade: a writer becomes a reader under the same token. Readers that waited come in, a
// writer does not, and the lease is renewed and released like any other.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(f.open(pglock.WithTTL(2*time.Second)), "rw"), rwlock(f.open(), "rw")
	w := write(t, a, pglock.WithLabels(map[string]string{"k": "v"}))
	token := w.Token()
	reader := make(chan error, 1)
	go func() {
		l, err := b.read.Acquire(t.Context())
		if err == nil {
			err = l.Release(t.Context())
		}
		reader <- err
	}()
	f.waiters(1)
	downgrade(t, w)
	select {
	case err := <-reader:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a waiting reader was not woken")
	}
	downgrade(t, w) // nothing more to do
	if w.Token() != token || w.Err() != nil {
		t.Errorf("token %d, err %v; want %d", w.Token(), w.Err(), token)
	}
	if _, err := b.write.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a writer beside the downgraded one: %v", err)
	}
	if err := w.Bind(t.Context(), begin(t, f)); !errors.Is(err, fencing.ErrShared) {
		t.Errorf("Bind: %v", err)
	}
	tx := begin(t, f)
	if err := w.Guard(t.Context(), tx); err != nil {
		t.Errorf("Guard: %v", err)
	}
	_ = tx.Rollback(t.Context())
	if got := value[string](f, "SELECT format('%s %s %s', token, weight, labels) FROM pglock.lock_permits"); got != value[string](f, "SELECT format('%s 1 {\"k\": \"v\"}', $1::bigint)", int64(token)) {
		t.Errorf("the permit is %s", got)
	}
	pgtest.Eventually(t, 20*time.Second, "renewals", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.lock_permits WHERE version > 3") == 1
	})
	release(t, w)
	release(t, write(t, b))
}

// TestDowngradeIsWithoutAGap: while a writer becomes a reader, another writer never gets in. The
// control releases the lock and acquires it again.
func TestDowngradeIsWithoutAGap(t *testing.T) {
	t.Parallel()
	const rounds = 30
	f := newFixture(t)
	overtaken := func(name string, change func(a rw, w *pglock.Lease) (*pglock.Lease, error)) (n int) {
		a, b := rwlock(f.open(), name), rwlock(f.open(), name)
		for range rounds {
			w := write(t, a)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			var other *pglock.Lease
			var wg sync.WaitGroup
			var granted atomic.Bool
			wg.Go(func() { other, _ = b.write.Acquire(ctx); granted.Store(true) })
			pgtest.Eventually(t, 20*time.Second, "a ticket", func() bool {
				return value[int](f, "SELECT count(*) FROM pglock.lock_waiters AS w JOIN pglock.distributed_locks AS l USING (name) WHERE name = $1 AND w.ticket > l.ticket", name) == 1
			})
			r, err := change(a, w)
			switch {
			case errors.Is(err, pglock.ErrNotAcquired):
				n++
			case err != nil:
				t.Fatal(err)
			default:
				rest(t, 5*time.Millisecond)
				if granted.Load() {
					n++
				}
				if err := r.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
			wg.Wait()
			cancel()
			if other == nil {
				t.Fatal("the other writer was not granted")
			}
			if err := other.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return n
	}
	if n := overtaken("rw", func(_ rw, w *pglock.Lease) (*pglock.Lease, error) {
		return w, w.Downgrade(t.Context())
	}); n > 0 {
		t.Errorf("%d of %d downgrades let another writer in", n, rounds)
	}
	if n := overtaken("control", func(a rw, w *pglock.Lease) (*pglock.Lease, error) {
		if err := w.Release(t.Context()); err != nil {
			t.Error(err)
		}
		return a.read.TryAcquire(t.Context())
	}); n < rounds {
		t.Errorf("control: a release and an acquire kept the lock in %d of %d rounds", rounds-n, rounds)
	}
}

// TestDowngradeOfALostLease: a writer whose grant is gone does not become a reader.
func TestDowngradeOfALostLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := rwlock(f.open(), "rw")
	w := write(t, a)
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity'")
	if err := w.Downgrade(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Downgrade: %v", err)
	}
	w = write(t, a)
	release(t, w)
	if err := w.Downgrade(t.Context()); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("Downgrade of a released lease: %v", err)
	}
	if _, err := w.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("TryUpgrade of a released lease: %v", err)
	}
	r := read(t, a)
	f.sql("DELETE FROM pglock.lock_permits")
	f.sql("UPDATE pglock.distributed_locks SET in_use = 0")
	if _, err := r.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("TryUpgrade of a lost lease: %v", err)
	}
}

// TestTryUpgrade: the only reader becomes the writer, under a new token. The old lease has ended
// without a loss.
func TestTryUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
	r, other := read(t, a), read(t, b)
	var busy *pglock.BusyError
	if _, err := r.TryUpgrade(t.Context()); !errors.As(err, &busy) || busy.Token != other.Token() || busy.Holder != other.Holder() || busy.Remaining <= 0 {
		t.Errorf("beside another reader: %v", err)
	}
	if err := r.Err(); err != nil {
		t.Fatalf("a refused upgrade ended the lease: %v", err)
	}
	release(t, other)
	w, err := r.TryUpgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w.Token() <= other.Token() || r.Token() == w.Token() {
		t.Errorf("tokens %d, %d and then %d", r.Token(), other.Token(), w.Token())
	}
	if err := r.Err(); !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost) {
		t.Errorf("the reader's lease ended with %v", err)
	}
	release(t, r) // does nothing
	if err := fencing.Check(t.Context(), begin(t, f), r.Fence()); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a guard with the reader's token: %v", err)
	}
	tx := begin(t, f)
	if err := w.Bind(t.Context(), tx); err != nil {
		t.Errorf("Bind: %v", err)
	}
	_ = tx.Rollback(t.Context())
	if _, err := w.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrHeldByCaller) {
		t.Errorf("upgrade of a writer: %v", err)
	}
	if _, err := b.read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a reader beside the writer: %v", err)
	}
	downgrade(t, w)
	again, err := w.TryUpgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, again)
	release(t, write(t, b))
	if n := value[int](f, "SELECT count(*) FROM pglock.lock_permits"); n != 0 {
		t.Errorf("%d permits are left", n)
	}
}

// TestTwoReadersThatUpgrade: of two readers that want to be the writer, none waits, and at most one
// is, after the other has ended.
func TestTwoReadersThatUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 20 {
		leases := [2]*pglock.Lease{read(t, rwlock(f.open(), "rw")), read(t, rwlock(f.open(), "rw"))}
		var upgraded [2]*pglock.Lease
		var wg sync.WaitGroup
		for i, l := range leases {
			wg.Go(func() {
				var err error
				if upgraded[i], err = l.TryUpgrade(t.Context()); err != nil && !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("TryUpgrade: %v", err)
				}
			})
		}
		wg.Wait()
		if upgraded[0] != nil || upgraded[1] != nil {
			t.Fatal("a reader beside another one is the writer")
		}
		release(t, leases[0])
		w, err := leases[1].TryUpgrade(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release(t, w)
	}
}

// TestUpgradeBesideGuards: a reader that has a guarded transaction open can't upgrade: what it writes
// there must not be fenced out by its own upgrade.
func TestUpgradeBesideGuards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := rwlock(f.open(), "rw")
	r := read(t, a)
	tx := begin(t, f)
	if err := r.Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("TryUpgrade: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the guarded transaction: %v", err)
	}
	w, err := r.TryUpgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A guarded transaction of the writer keeps readers out after a downgrade, until it ends.
	tx = begin(t, f)
	if err := w.Guard(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	downgrade(t, w)
	if _, err := a.read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a reader beside a guarded transaction of the writer: %v", err)
	}
	if _, err := w.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("an upgrade beside a guarded transaction of the writer: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the guarded transaction: %v", err)
	}
	release(t, read(t, a))
	release(t, w)
}

// TestUpgradeOvertakesAWaitingWriter: the waiting writer could not be granted the lock before the
// reader ends, and is granted it afterwards.
func TestUpgradeOvertakesAWaitingWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(f.open(), "rw"), rwlock(f.open(), "rw")
	r := read(t, a)
	waiting := make(chan *pglock.Lease, 1)
	go func() {
		l, err := b.write.Acquire(t.Context())
		if err != nil {
			t.Error(err)
		}
		waiting <- l
	}()
	f.waiters(1)
	w, err := r.TryUpgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, w)
	select {
	case l := <-waiting:
		if l.Token() < w.Token() {
			t.Errorf("token %d of the waiting writer is not above %d", l.Token(), w.Token())
		}
		release(t, l)
	case <-time.After(20 * time.Second):
		t.Fatal("the waiting writer was not granted")
	}
}

// TestChangesOfOtherLeases: only leases of readers-writer locks change, and not through a lease that
// has joined them.
func TestChangesOfOtherLeases(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for what, l := range map[string]*pglock.Lease{"lease": try(t, c, "lease"), "semaphore": permits(t, c.Semaphore("s", 2), 2)} {
		if err := l.Downgrade(t.Context()); !errors.Is(err, pglock.ErrKind) {
			t.Errorf("Downgrade of a %s: %v", what, err)
		}
		if _, err := l.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrKind) {
			t.Errorf("TryUpgrade of a %s: %v", what, err)
		}
	}
	rw := rwlock(c, "rw")
	w := write(t, rw)
	downgrade(t, w)
	err := rw.write.Do(w.Context(), func(context.Context, *pglock.Lease) error { t.Error("fn ran"); return nil }, pglock.WithJoin())
	if !errors.Is(err, pglock.ErrHeldByCaller) {
		t.Errorf("a writer joins a downgraded lease: %v", err)
	}
}

// TestAdoptPermits: grants of permits are handed over like those of any lock, and keep their kind.
func TestAdoptPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.open(), f.open(pglock.WithHolder("B"))
	handOver := func(l *pglock.Lease) *pglock.Lease {
		t.Helper()
		fence, err := l.HandOver()
		if err != nil {
			t.Fatal(err)
		}
		l, err = b.Adopt(t.Context(), fence)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	w := handOver(write(t, rwlock(a, "rw")))
	if _, err := rwlock(a, "rw").read.TryAcquire(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a reader beside the adopted writer: %v", err)
	}
	downgrade(t, w)
	w = handOver(w)
	again, err := w.TryUpgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fence, err := again.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Adopt(t.Context(), fence, pglock.WithMinHold(time.Hour)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("WithMinHold: %v", err)
	}
	again, err = b.Adopt(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	release(t, again)
	if _, err := b.Adopt(t.Context(), fence); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("Adopt of a released grant: %v", err)
	}
	s := handOver(permits(t, a.Semaphore("s", 3), 2))
	noPermits(t, a.Semaphore("s", 3), 2)
	if got := value[string](f, "SELECT holder FROM pglock.lock_permits"); got != "B" {
		t.Errorf("the holder is %s", got)
	}
	release(t, s)
	release(t, permits(t, a.Semaphore("s", 3), 3))
}

// TestUpgradeMeetsARenewal: a renewal in progress is not taken for a guarded transaction. An upgrade
// waits 250 ms for a row. A renewal that this test ended too late for that is repeated.
func TestUpgradeMeetsARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := read(t, rwlock(f.open(), "rw"))
	for range 10 {
		renewal := begin(t, f)
		if _, err := renewal.Exec(t.Context(), f.named("SELECT FROM pglock.lock_permits FOR NO KEY UPDATE")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		upgraded := make(chan error, 1)
		go func() {
			w, err := r.TryUpgrade(t.Context())
			if err == nil {
				err = w.Release(t.Context())
			}
			upgraded <- err
		}()
		pgtest.Eventually(t, 20*time.Second, "the upgrade waits for the renewal, or has ended", func() bool {
			return len(upgraded) > 0 || value[int](f, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')") > 0
		})
		if err := renewal.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		tookTooLong := time.Since(began) > 250*time.Millisecond
		err := <-upgraded
		if err != nil && !tookTooLong {
			t.Fatalf("TryUpgrade: %v", err)
		}
		if err == nil {
			return
		}
		t.Logf("again: the renewal took %v", time.Since(began))
	}
	t.Error("this machine was too slow in each round")
}

// TestARenewalMeetsAnUpgrade: until the answer of TryUpgrade is known, a renewal that does not find
// the reader's grant does not end the lease. Otherwise it does.
func TestARenewalMeetsAnUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := read(t, rwlock(f.open(), "rw"))
	if err := pglock.GoneWhileUpgrading(r, true); err == nil || r.Err() != nil {
		t.Errorf("during an upgrade: %v, %v", err, r.Err())
	}
	if err := pglock.GoneWhileUpgrading(r, false); !errors.Is(err, pglock.ErrLost) || !errors.Is(r.Err(), pglock.ErrLost) {
		t.Errorf("without one: %v, %v", err, r.Err())
	}
}
