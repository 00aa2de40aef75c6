package pglock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

func TestReleaseIsIdempotent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "n")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { release(t, l) })
	}
	wg.Wait()
	next := try(t, c, "n")
	release(t, l) // again, after another client has acquired the lock
	if next.Err() != nil || value[int64](f, "SELECT token FROM pglock.distributed_locks WHERE holder IS NOT NULL") != int64(next.Token()) {
		t.Error("a repeated release touched another grant")
	}
	release(t, next)
}

// TestP14_ReleaseAnswerLost: the first attempt was applied, and the second one finds that out, also
// if another client has the lock by then.
func TestP14_ReleaseAnswerLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	other := f.open()
	for _, taken := range []bool{false, true} {
		release(t, try(t, c, "n")) // the statements are prepared
		l := try(t, c, "n", pglock.WithRenewEvery(0))
		proxy.DropReplies()
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }()
		until(f, "the release is applied", true, "SELECT holder IS NULL FROM pglock.distributed_locks")
		var next *pglock.Lease
		if taken {
			next = try(t, other, "n")
		}
		proxy.Heal()
		proxy.Sever()
		if err := <-released; err != nil {
			t.Errorf("taken over meanwhile: %v: Release: %v", taken, err)
		}
		if next != nil {
			release(t, next)
		}
	}
	// A call fails for lack of an answer. Another one, much later, finds out that it was applied.
	release(t, try(t, c, "n"))
	l := try(t, c, "n", pglock.WithRenewEvery(0))
	proxy.DropReplies()
	fails(t, "without an answer", l.Release(t.Context()), pglock.ErrUnavailable)
	f.none("grants are left", grants)
	proxy.Heal()
	proxy.Sever()
	release(t, l)
}

func TestReleaseWithoutAServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	l := try(t, c, "n")
	proxy.Refuse(true)
	proxy.Sever()
	ctx := bounded(t, 200*time.Millisecond)
	fails(t, "while the server is away", l.Release(ctx), context.DeadlineExceeded)
	ends(t, "the context is done all the same", l.Done())
	proxy.Refuse(false)
	release(t, l) // joins the attempt in progress, or tries anew
	release(t, try(t, c, "n"))
}

// TestReleaseDuringARenewal: a renewal in progress when its lease is released does not cause a
// loss, and does not revive the lease.
func TestReleaseDuringARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(5*time.Millisecond))
	proxy.Delay(10 * time.Millisecond) // so that one is nearly always in progress
	for range 25 {
		l := acquire(t, c, "n")
		version := value[int64](f, "SELECT version FROM pglock.distributed_locks")
		pgtest.Eventually(t, "a renewal", func() bool {
			return value[int64](f, "SELECT version FROM pglock.distributed_locks") > version
		})
		release(t, l)
	}
	rest(t, 50*time.Millisecond)
	is(f, "the lock is held again", false, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
}

// TestAReleaseOfSeveralKindsIsRepeated: the statement for one kind is done, and that for the other has to
// be repeated, because somebody holds the row for longer than it waits. That is no loss of the first.
func TestAReleaseOfSeveralKindsIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := held(t, c.All(c.Lock("m"), c.Semaphore("n", 2)))
	tx := begin(t, f)
	_, err := tx.Exec(t.Context(), f.named("SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR NO KEY UPDATE"))
	must(t, err)
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context()) }()
	until(f, "the first name is free", 1, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'm' AND holder IS NULL")
	rest(t, 2*timing.LockTimeout)
	must(t, tx.Rollback(t.Context()))
	check(t, <-released)
	f.none("grants are left", grants)
}
