package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

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
	a, b := rwlock(f.open(pglock.WithTTL(6*time.Second)), "rw"), rwlock(f.open(), "rw")
	w := tried(t, a.write, pglock.WithLabels(map[string]string{"k": "v"}))
	token := w.Token()
	tx := begin(t, f)
	check(t, w.Bind(t.Context(), tx))
	must(t, tx.Rollback(t.Context()))
	reader := waits(f, b.read)
	downgrade(t, w)
	release(t, next(t, reader))
	downgrade(t, w) // nothing more to do
	if w.Token() != token || w.Err() != nil {
		t.Errorf("token %d, err %v; want %d", w.Token(), w.Err(), token)
	}
	isBusy(t, "a writer beside the downgraded one", b.write)
	fails(t, "Bind", w.Bind(t.Context(), begin(t, f)), fencing.ErrShared)
	tx = begin(t, f)
	check(t, w.Guard(t.Context(), tx))
	_ = tx.Rollback(t.Context())
	is(f, "the permit", true, "SELECT token = $1 AND weight = 1 AND labels = '{\"k\": \"v\"}' FROM pglock.lock_permits", int64(token))
	until(f, "renewals", 1, "SELECT count(*) FROM pglock.lock_permits WHERE version > 3")
	release(t, w)
	release(t, tried(t, b.write))
}

// TestDowngradeOfALostLease: a writer whose grant is gone does not become a reader.
func TestDowngradeOfALostLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := rwlock(f.open(), "rw")
	w := tried(t, a.write)
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity'")
	fails(t, "Downgrade", w.Downgrade(t.Context()), pglock.ErrLost)
	w = tried(t, a.write)
	release(t, w)
	fails(t, "Downgrade of a released lease", w.Downgrade(t.Context()), pglock.ErrReleased)
	fails(t, "TryUpgrade of a released lease", second(w.TryUpgrade(t.Context())), pglock.ErrReleased)
	r := tried(t, a.read)
	f.sql("DELETE FROM pglock.lock_permits")
	f.sql("UPDATE pglock.distributed_locks SET in_use = 0")
	fails(t, "TryUpgrade of a lost lease", second(r.TryUpgrade(t.Context())), pglock.ErrLost)
}

// TestUpgradeBesideGuards: a reader that has a guarded transaction open can't upgrade: what it writes
// there must not be fenced out by its own upgrade.
func TestUpgradeBesideGuards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := rwlock(f.open(), "rw")
	r := tried(t, a.read)
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
	release(t, tried(t, a.read))
	release(t, w)
}

// TestChangesOfOtherLeases: only leases of readers-writer locks change, and not through a lease that
// has joined them.
func TestChangesOfOtherLeases(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for what, l := range map[string]*pglock.Lease{"lease": try(t, c, "lease"), "semaphore": tried(t, c.Semaphore("s", 2).Weight(2))} {
		if err := l.Downgrade(t.Context()); !errors.Is(err, pglock.ErrKind) {
			t.Errorf("Downgrade of a %s: %v", what, err)
		}
		if _, err := l.TryUpgrade(t.Context()); !errors.Is(err, pglock.ErrKind) {
			t.Errorf("TryUpgrade of a %s: %v", what, err)
		}
	}
	rw := rwlock(c, "rw")
	w := tried(t, rw.write)
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
	w := handOver(tried(t, rwlock(a, "rw").write))
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
	s := handOver(tried(t, a.Semaphore("s", 3).Weight(2)))
	isBusy(t, "no permit is free", a.Semaphore("s", 3).Weight(2))
	is(f, "the holder is", "B", "SELECT holder FROM pglock.lock_permits")
	fence, err = s.HandOver()
	must(t, err)
	fails(t, "WithMinHold, a semaphore", second(b.Adopt(t.Context(), fence, pglock.WithMinHold(time.Hour))), pglock.ErrInvalidOption)
	s, err = b.Adopt(t.Context(), fence)
	must(t, err)
	release(t, s)
	release(t, tried(t, a.Semaphore("s", 3).Weight(3)))
}

// TestARenewalMeetsAnUpgrade: until the answer of TryUpgrade is known, a renewal that does not find
// the reader's grant does not end the lease. Otherwise it does.
func TestARenewalMeetsAnUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := tried(t, rwlock(f.open(), "rw").read)
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
