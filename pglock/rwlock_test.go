package pglock_test

import (
	"context"
	"errors"
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

func read(t *testing.T, l rw, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	lease, err := l.read.TryAcquire(t.Context(), opts...)
	must(t, err)
	return lease
}

func write(t *testing.T, l rw, opts ...pglock.LeaseOption) *pglock.Lease {
	t.Helper()
	lease, err := l.write.TryAcquire(t.Context(), opts...)
	must(t, err)
	return lease
}

func downgrade(t *testing.T, l *pglock.Lease) {
	t.Helper()
	must(t, l.Downgrade(t.Context()))
}

// waiters waits until n clients have a ticket.
func (f fixture) waiters(n int) {
	f.t.Helper()
	until(f, "tickets", n, "SELECT count(*) FROM pglock.lock_waiters WHERE expires_at > clock_timestamp()")
}

// TestDowngrade: a writer becomes a reader under the same token. Readers that waited come in, a
// writer does not, and the lease is renewed and released like any other.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := rwlock(f.open(pglock.WithTTL(2*time.Second)), "rw"), rwlock(f.open(), "rw")
	w := write(t, a, pglock.WithLabels(map[string]string{"k": "v"}))
	token := w.Token()
	reader := waits(f, b.read)
	downgrade(t, w)
	release(t, next(t, reader))
	downgrade(t, w) // nothing more to do
	if w.Token() != token || w.Err() != nil {
		t.Errorf("token %d, err %v; want %d", w.Token(), w.Err(), token)
	}
	isBusy(t, "a writer beside the downgraded one", b.write)
	fails(t, "Bind", w.Bind(t.Context(), begin(t, f)), fencing.ErrShared)
	tx := begin(t, f)
	check(t, w.Guard(t.Context(), tx))
	_ = tx.Rollback(t.Context())
	is(f, "the permit", true, "SELECT token = $1 AND weight = 1 AND labels = '{\"k\": \"v\"}' FROM pglock.lock_permits", int64(token))
	until(f, "renewals", 1, "SELECT count(*) FROM pglock.lock_permits WHERE version > 3")
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
			until(f, "a ticket", 1, "SELECT count(*) FROM pglock.lock_waiters AS w JOIN pglock.distributed_locks AS l USING (name) WHERE name = $1 AND w.ticket > l.ticket", name)
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
				check(t, r.Release(t.Context()))
			}
			wg.Wait()
			cancel()
			if other == nil {
				t.Fatal("the other writer was not granted")
			}
			check(t, other.Release(t.Context()))
		}
		return n
	}
	if n := overtaken("rw", func(_ rw, w *pglock.Lease) (*pglock.Lease, error) {
		return w, w.Downgrade(t.Context())
	}); n > 0 {
		t.Errorf("%d of %d downgrades let another writer in", n, rounds)
	}
	if n := overtaken("control", func(a rw, w *pglock.Lease) (*pglock.Lease, error) {
		check(t, w.Release(t.Context()))
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
	fails(t, "Downgrade", w.Downgrade(t.Context()), pglock.ErrLost)
	w = write(t, a)
	release(t, w)
	fails(t, "Downgrade of a released lease", w.Downgrade(t.Context()), pglock.ErrReleased)
	fails(t, "TryUpgrade of a released lease", second(w.TryUpgrade(t.Context())), pglock.ErrReleased)
	r := read(t, a)
	f.sql("DELETE FROM pglock.lock_permits")
	f.sql("UPDATE pglock.distributed_locks SET in_use = 0")
	fails(t, "TryUpgrade of a lost lease", second(r.TryUpgrade(t.Context())), pglock.ErrLost)
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
		must(t, err)
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
	must(t, r.Guard(t.Context(), tx))
	fails(t, "TryUpgrade", second(r.TryUpgrade(t.Context())), pglock.ErrNotAcquired)
	check(t, tx.Commit(t.Context()))
	w, err := r.TryUpgrade(t.Context())
	must(t, err)
	// A guarded transaction of the writer keeps readers out after a downgrade, until it ends.
	tx = begin(t, f)
	must(t, w.Guard(t.Context(), tx))
	downgrade(t, w)
	isBusy(t, "a reader beside a guarded transaction of the writer", a.read)
	fails(t, "an upgrade beside a guarded transaction of the writer", second(w.TryUpgrade(t.Context())), pglock.ErrNotAcquired)
	check(t, tx.Commit(t.Context()))
	release(t, read(t, a))
	release(t, w)
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
	fails(t, "a writer joins a downgraded lease", err, pglock.ErrHeldByCaller)
}

// TestAdoptPermits: grants of permits are handed over like those of any lock, and keep their kind.
func TestAdoptPermits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.open(), f.open(pglock.WithHolder("B"))
	handOver := func(l *pglock.Lease) *pglock.Lease {
		t.Helper()
		fence, err := l.HandOver()
		must(t, err)
		l, err = b.Adopt(t.Context(), fence)
		must(t, err)
		return l
	}
	w := handOver(write(t, rwlock(a, "rw")))
	isBusy(t, "a reader beside the adopted writer", rwlock(a, "rw").read)
	downgrade(t, w)
	w = handOver(w)
	again, err := w.TryUpgrade(t.Context())
	must(t, err)
	fence, err := again.HandOver()
	must(t, err)
	fails(t, "WithMinHold", second(b.Adopt(t.Context(), fence, pglock.WithMinHold(time.Hour))), pglock.ErrInvalidOption)
	again, err = b.Adopt(t.Context(), fence)
	must(t, err)
	release(t, again)
	fails(t, "Adopt of a released grant", second(b.Adopt(t.Context(), fence)), fencing.ErrStale)
	s := handOver(permits(t, a.Semaphore("s", 3), 2))
	noPermits(t, a.Semaphore("s", 3), 2)
	is(f, "the holder is", "B", "SELECT holder FROM pglock.lock_permits")
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
		run(t, renewal, f.named("SELECT FROM pglock.lock_permits FOR NO KEY UPDATE"))
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
		must(t, renewal.Commit(t.Context()))
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

// TestI3_AReaderWhoseUpgradeIsUnansweredStops: the server has made the reader the writer, and the
// answer is lost. The client revokes that grant, and another one becomes the writer. The reader has
// stopped by then, although its TTL is far from over. With an upgrade that was never sent, it goes on.
func TestI3_AReaderWhoseUpgradeIsUnansweredStops(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]bool{"answer lost": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
				if strings.Contains(r.SQL, "upgrade_permits") {
					proxy.Refuse(true)
					return faultproxy.LoseReply
				}
				return faultproxy.Pass
			})
			c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithTTL(time.Minute))
			defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }() // its lease may be lost
			reader := held(t, rwlock(c, "n").read)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if !sent {
				cancel()
			}
			if _, err := reader.TryUpgrade(ctx); err == nil {
				t.Fatal("an upgrade without an answer")
			}
			proxy.Refuse(false)
			if !sent {
				check(t, reader.Err())
				return
			}
			other, err := rwlock(f.open(), "n").write.Acquire(t.Context(), pglock.WithWait(30*time.Second))
			must(t, err)
			fails(t, "the reader beside another writer", reader.Err(), pglock.ErrLost)
			release(t, other)
		})
	}
}
