package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
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

// TestUpgradeAfterALostDowngrade: where a failover has lost the downgrade, the reader is still the
// writer. Its upgrade fails, and others do not wait for the rest of the TTL.
func TestUpgradeAfterALostDowngrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := rwlock(f.open(), "rw")
	w := tried(t, a.write)
	f.sql("CREATE TABLE pglock.before AS SELECT * FROM pglock.distributed_locks")
	downgrade(t, w)
	f.sql("DELETE FROM pglock.lock_permits; DELETE FROM pglock.distributed_locks; INSERT INTO pglock.distributed_locks SELECT * FROM pglock.before")
	fails(t, "TryUpgrade", second(w.TryUpgrade(t.Context())), pglock.ErrLost)
	until(f, "the lock is free", true, "SELECT holder IS NULL FROM pglock.distributed_locks")
	release(t, tried(t, a.read))
}

// TestChangesOfOtherLeases: only leases of readers-writer locks change, and not through a lease that
// has joined them.
func TestChangesOfOtherLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
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
	})
}

// TestARenewalMeetsAnUpgrade: until the answer of TryUpgrade is known, a renewal that does not find
// the reader's grant does not end the lease. Otherwise it does.
func TestARenewalMeetsAnUpgrade(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		r := tried(t, rwlock(f.open(), "rw").read)
		if err := pglock.GoneWhileUpgrading(r, true); err == nil || r.Err() != nil {
			t.Errorf("during an upgrade: %v, %v", err, r.Err())
		}
		if err := pglock.GoneWhileUpgrading(r, false); !errors.Is(err, pglock.ErrLost) || !errors.Is(r.Err(), pglock.ErrLost) {
			t.Errorf("without one: %v, %v", err, r.Err())
		}
	})
}

// TestAdoptPermits: grants of permits are handed over like those of any lock, and keep their kind.
func TestAdoptPermits(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
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
		if got := f.row("s").Grants[0].Holder; got != "B" {
			t.Errorf("the holder is %q", got)
		}
		fence, err = s.HandOver()
		must(t, err)
		fails(t, "WithMinHold, a semaphore", second(b.Adopt(t.Context(), fence, pglock.WithMinHold(time.Hour))), pglock.ErrInvalidOption)
		s, err = b.Adopt(t.Context(), fence)
		must(t, err)
		release(t, s)
		release(t, tried(t, a.Semaphore("s", 3).Weight(3)))
	})
}

// TestSeveralUpgradesOfOneLease: one call makes the writer, and the others are told that the reader has
// ended so. None of them takes it for lost.
func TestSeveralUpgradesOfOneLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const rounds, callers = 40, 3
		c := f.open()
		for range rounds {
			reader := held(t, rwlock(c, "rw").read)
			var all sync.WaitGroup
			writers := make(chan *pglock.Lease, callers)
			for range callers {
				all.Go(func() {
					w, err := reader.TryUpgrade(t.Context())
					switch {
					case err == nil:
						writers <- w
					case !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost):
						t.Errorf("another call: %v", err)
					}
				})
			}
			all.Wait()
			close(writers)
			if err := reader.Err(); !errors.Is(err, pglock.ErrReleased) || errors.Is(err, pglock.ErrLost) {
				t.Errorf("the reader has ended by %v", err)
			}
			if len(writers) != 1 {
				t.Fatalf("%d writers", len(writers))
			}
			release(t, <-writers)
		}
	})
}

// TestDowngrade: a writer becomes a reader under the same token. Readers that waited come in, a
// writer does not, and the lease is renewed and released like any other.
func TestDowngrade(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		a, b := rwlock(f.open(pglock.WithTTL(6*time.Second)), "rw"), rwlock(f.open(), "rw")
		w := tried(t, a.write, pglock.WithLabels(map[string]string{"k": "v"}))
		token := w.Token()
		tx := f.begin()
		check(t, w.Bind(t.Context(), tx))
		must(t, tx.Rollback(t.Context()))
		reader := f.waits(b.read)
		downgrade(t, w)
		release(t, next(t, reader))
		downgrade(t, w) // nothing more to do
		if w.Token() != token || w.Err() != nil {
			t.Errorf("token %d, err %v; want %d", w.Token(), w.Err(), token)
		}
		isBusy(t, "a writer beside the downgraded one", b.write)
		fails(t, "Bind", w.Bind(t.Context(), f.begin()), fencing.ErrShared)
		tx = f.begin()
		check(t, w.Guard(t.Context(), tx))
		_ = tx.Rollback(t.Context())
		if g := f.row("rw").Grants; len(g) != 1 || g[0].Token != token || g[0].Exclusive || g[0].Labels["k"] != "v" {
			t.Errorf("%+v", g)
		}
		rest(t, time.Minute)
		check(t, w.Err()) // it is renewed
		release(t, w)
		release(t, tried(t, b.write))
	})
}

// TestDowngradeOfALostLease: a writer whose grant is gone does not become a reader.
func TestDowngradeOfALostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		a := rwlock(f.open(), "rw")
		w := tried(t, a.write)
		f.Expire("rw", 0)
		fails(t, "Downgrade", w.Downgrade(t.Context()), pglock.ErrLost)
		w = tried(t, a.write)
		release(t, w)
		fails(t, "Downgrade of a released lease", w.Downgrade(t.Context()), pglock.ErrReleased)
		fails(t, "TryUpgrade of a released lease", second(w.TryUpgrade(t.Context())), pglock.ErrReleased)
		r := tried(t, a.read)
		f.Expire("rw", 0)
		fails(t, "TryUpgrade of a lost lease", second(r.TryUpgrade(t.Context())), pglock.ErrLost)
	})
}

// TestI3_AReaderWhoseUpgradeMeetsCloseStops: the server has made the reader the writer, and the
// client takes no lease any more. It revokes that grant, which lets others in, after the reader's
// lease has ended.
func TestI3_AReaderWhoseUpgradeMeetsCloseStops(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	r := tried(t, rwlock(c, "rw").read)
	pglock.RefuseLeases(c)
	fails(t, "TryUpgrade", second(r.TryUpgrade(t.Context())), pglock.ErrClosed)
	fails(t, "the reader's lease", r.Err(), pglock.ErrReleased)
}

// TestI3_AReaderWhoseUpgradeIsUnansweredStops: the server has made the reader the writer, and the
// answer is lost. The client revokes that grant, and another one becomes the writer. The reader has
// stopped by then, although its TTL is far from over. With an upgrade that was never sent, it goes on.
func TestI3_AReaderWhoseUpgradeIsUnansweredStops(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]bool{"answer lost": true, "not sent": false} {
		bubbles(t, name, func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			c := far.openUnclosed(pglock.WithTTL(time.Minute))
			defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }() // its lease may be lost
			reader := held(t, c.Reader("n"))
			proxy.DropReplies()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if !sent {
				cancel()
			}
			if _, err := reader.TryUpgrade(ctx); err == nil {
				t.Fatal("an upgrade without an answer")
			}
			proxy.Heal()
			proxy.Sever()
			if !sent {
				check(t, reader.Err())
				return
			}
			other := held(t, f.open().Writer("n"), pglock.WithWait(30*time.Second))
			fails(t, "the reader beside another writer", reader.Err(), pglock.ErrLost)
			release(t, other)
		})
	}
}
