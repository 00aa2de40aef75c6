package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func TestP19_ReleaseFreesAtOnce(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	l := try(t, c, "n")
	release(t, l)
	select {
	case <-l.Done():
	default:
		t.Error("the context is not done after Release")
	}
	if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrReleased) || !errors.Is(l.Err(), pglock.ErrReleased) {
		t.Errorf("cause %v, Err %v", err, l.Err())
	}
	release(t, try(t, c, "n"))
}

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

// TestReleaseOnACanceledContext: the usual defer after a cancellation.
func TestReleaseOnACanceledContext(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	l := try(t, c, "n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
	release(t, try(t, c, "n"))
}

// TestP14_ReleaseAnswerLost: the first attempt was applied, and the second one finds that out, also
// if another client has the lock by then.
func TestP14_ReleaseAnswerLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	other := f.open()
	for _, taken := range []bool{false, true} {
		release(t, try(t, c, "n")) // the statements are prepared
		l := try(t, c, "n", pglock.WithRenewEvery(0))
		proxy.DropReplies()
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }()
		pgtest.Eventually(t, 5*time.Second, "the release is applied", func() bool {
			return value[bool](f, "SELECT holder IS NULL FROM pglock.distributed_locks")
		})
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
}

func TestReleaseWithoutAServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	l := try(t, c, "n")
	proxy.Refuse(true)
	proxy.Sever()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the server is away: %v", err)
	}
	within(t, time.Second, "the context is done all the same", l.Done())
	proxy.Refuse(false)
	release(t, l) // joins the attempt in progress, or tries anew
	release(t, try(t, c, "n"))
}

// TestReleaseDuringARenewal: a renewal in progress when its lease is released does not cause a
// loss, and does not revive the lease.
func TestReleaseDuringARenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(5*time.Millisecond))
	proxy.Delay(10 * time.Millisecond) // so that one is nearly always in progress
	for range 25 {
		l := acquire(t, c, "n")
		version := value[int64](f, "SELECT version FROM pglock.distributed_locks")
		pgtest.Eventually(t, 5*time.Second, "a renewal", func() bool {
			return value[int64](f, "SELECT version FROM pglock.distributed_locks") > version
		})
		release(t, l)
	}
	rest(t, 50*time.Millisecond)
	if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
		t.Error("the lock is held again")
	}
}

// TestP14_ReleaseAnswerLostForGood: the first call was applied, but failed for lack of an answer. A
// second one, much later, succeeds.
func TestP14_ReleaseAnswerLostForGood(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	release(t, try(t, c, "n")) // the statements are prepared
	l := try(t, c, "n", pglock.WithRenewEvery(0))
	proxy.DropReplies()
	if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
		t.Fatal("the release was not applied")
	}
	proxy.Heal()
	proxy.Sever()
	release(t, l)
}
