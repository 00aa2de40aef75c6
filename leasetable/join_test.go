package leasetable_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/migrations"
)

// refuses fails the test unless both calls under ctx say at once that ctx holds the lock.
func refuses(ctx context.Context, t *testing.T, c *leasetable.Client, l *leasetable.Lease) {
	t.Helper()
	for what, call := range map[string]func(context.Context, string, ...leasetable.LeaseOption) (*leasetable.Lease, error){
		"Acquire": c.Acquire, "TryAcquire": c.TryAcquire,
	} {
		bounded, cancel := context.WithTimeout(ctx, 20*time.Second) // without the check it waits
		_, err := call(bounded, l.Name())
		cancel()
		var held *leasetable.HeldError
		if !errors.As(err, &held) || held.Token != l.Token() || held.Holder != l.Holder() || !errors.Is(err, leasetable.ErrHeldByCaller) {
			t.Errorf("%s: told %v", what, err)
			continue
		}
		if errors.Is(err, leasetable.ErrNotAcquired) || !strings.Contains(err.Error(), "WithJoin") {
			t.Errorf("%s: told %v", what, err)
		}
	}
}

// TestANestedAcquireFailsAtOnce in every context that a lease has given out, for the same client
// and for another one of the same database and schema.
func TestANestedAcquireFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	l := try(t, c, "n")
	with, cancel := l.WithContext(t.Context())
	defer cancel()
	type key struct{}
	derived := context.WithValue(context.WithoutCancel(with), key{}, 1)
	inner, err := c.Acquire(derived, "another name")
	if err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{l.Context(), with, derived, inner.Context()} {
		refuses(ctx, t, c, l)
		refuses(ctx, t, other, l)
		if got, ok := leasetable.FromContext(ctx, "n"); !ok || got != l {
			t.Errorf("FromContext: %v, %v", got, ok)
		}
	}
	if got, ok := leasetable.FromContext(t.Context(), "n"); ok {
		t.Errorf("a context without a lease carries %v", got)
	}
	release(t, inner)
	release(t, l)
	// Released: it is an ordinary acquire, although the context still carries the lease.
	again, err := other.TryAcquire(derived, "n")
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := leasetable.FromContext(derived, "n"); !ok || got != l || got.Err() == nil {
		t.Errorf("FromContext after the release: %v, %v", got, ok)
	}
	release(t, again)
}

// TestALockOfTheSameNameElsewhereIsAnotherLock: another schema, or another database with the same
// schema and even the same token and holder.
func TestALockOfTheSameNameElsewhereIsAnotherLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n", leasetable.WithHolder("h"))
	release(t, nested(t, newFixture(t).open(), l))

	elsewhere := fixture{t, pgtest.PoolOn(t, pgtest.Database(t)), f.schema}
	if err := migrations.Up(t.Context(), elsewhere.pool, migrations.WithSchema(f.schema)); err != nil {
		t.Fatal(err)
	}
	c, err := leasetable.Open(t.Context(), elsewhere.pool, leasetable.WithSchema(f.schema))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	release(t, nested(t, c, l))
	// Held there by another holder, whose row looks the same.
	elsewhere.sql(`UPDATE pglock.distributed_locks SET token = $1, holder = 'h',
		expires_at = clock_timestamp() + interval '1 hour'`, int64(l.Token()))
	_, err = c.TryAcquire(l.Context(), "n")
	var busy *leasetable.BusyError
	if !errors.As(err, &busy) || busy.Token != l.Token() {
		t.Errorf("told %v", err)
	}
	release(t, l)
}

// nested acquires the lock of l through c under the context of l.
func nested(t *testing.T, c *leasetable.Client, l *leasetable.Lease) *leasetable.Lease {
	t.Helper()
	got, err := c.TryAcquire(l.Context(), l.Name())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func join(ctx context.Context, t *testing.T, c *leasetable.Client, name string, opts ...leasetable.LeaseOption) *leasetable.Lease {
	t.Helper()
	l, err := c.Acquire(ctx, name, append(opts, leasetable.WithJoin())...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestWithJoin: a joined lease is the same grant, and ends alone.
func TestWithJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	type key struct{}
	outer := join(t.Context(), t, c, "n") // nothing to join
	state := f.version("n")
	inner := join(context.WithValue(outer.Context(), key{}, "v"), t, f.open(), "n", leasetable.WithTTL(time.Hour), leasetable.WithHolder("another"))
	if inner == outer || inner.Fence() != outer.Fence() || inner.Holder() != outer.Holder() || !inner.Deadline().Equal(outer.Deadline()) {
		t.Errorf("joined %+v, %q, %v", inner.Fence(), inner.Holder(), inner.Deadline())
	}
	if inner.Context().Value(key{}) != "v" {
		t.Error("the joined lease's context lacks the values of the caller's")
	}
	if got, _ := leasetable.FromContext(inner.Context(), "n"); got != inner {
		t.Errorf("its context carries %p, want %p", got, inner)
	}
	third := join(inner.Context(), t, c, "n")
	release(t, inner)
	release(t, inner)
	if inner.Err() == nil || inner.Context().Err() == nil || !errors.Is(context.Cause(inner.Context()), leasetable.ErrReleased) {
		t.Errorf("the joined lease is released: %v, %v", inner.Err(), context.Cause(inner.Context()))
	}
	if err := inner.Extend(t.Context(), time.Second); !errors.Is(err, leasetable.ErrReleased) {
		t.Errorf("Extend of a released lease: %v", err)
	}
	if err := errors.Join(outer.Err(), outer.Context().Err(), third.Err(), third.Context().Err()); err != nil {
		t.Errorf("the others ended with it: %v", err)
	}
	if now := f.version("n"); now != state {
		t.Errorf("joining and releasing have written: version %d, was %d", now, state)
	}
	if err := third.Extend(t.Context(), time.Hour); err != nil || time.Until(outer.Deadline()) < 50*time.Minute {
		t.Errorf("Extend: %v, the outer lease ends in %v", err, time.Until(outer.Deadline()))
	}
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(third.Guard(t.Context(), tx), tx.Rollback(t.Context())); err != nil {
		t.Errorf("Guard: %v", err)
	}
	release(t, outer)
	within(t, 10*time.Second, "the joined lease ends with the outer one", third.Done())
	if err := third.Release(t.Context()); !errors.Is(err, leasetable.ErrReleased) || errors.Is(err, leasetable.ErrLost) {
		t.Errorf("the outer lease was released first: %v", err)
	}
	if err := third.Guard(t.Context(), nil); !errors.Is(err, fencing.ErrStale) || !errors.Is(err, leasetable.ErrReleased) {
		t.Errorf("Guard after the end: %v", err)
	}
	release(t, try(t, c, "n"))
}

// TestAJoinedLeaseIsLostWithTheOuterOne, at the first look after a pause of the process.
func TestAJoinedLeaseIsLostWithTheOuterOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	outer := try(t, c, "n", leasetable.WithTTL(300*time.Millisecond), leasetable.WithoutRenewal())
	inner := join(outer.Context(), t, c, "n")
	leasetable.StopTimer(outer) // as if the process slept
	rest(t, time.Until(outer.Deadline())+time.Millisecond)
	if err := inner.Context().Err(); err == nil {
		t.Error("past the deadline, the joined lease's context is not done")
	}
	var lost *leasetable.LostError
	if err := inner.Release(t.Context()); !errors.As(err, &lost) || lost.Token != outer.Token() {
		t.Errorf("Release: %v", err)
	}
	// The lock is not held any more: an ordinary acquire gets it.
	got := join(context.WithoutCancel(inner.Context()), t, c, "n")
	if got.Token() <= outer.Token() {
		t.Errorf("joined the lost grant %d", got.Token())
	}
	release(t, got)
}

// TestAJoinedLeaseEndsWithItsClient also holds that Close waits for no joined lease.
func TestAJoinedLeaseEndsWithItsClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	outer := try(t, c, "n")
	inner := join(outer.Context(), t, c, "n")
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := inner.Release(t.Context()); !errors.Is(err, leasetable.ErrClosed) || !errors.Is(err, leasetable.ErrReleased) {
		t.Errorf("Release: %v", err)
	}
	if _, err := c.Acquire(context.WithoutCancel(inner.Context()), "n", leasetable.WithJoin()); !errors.Is(err, leasetable.ErrClosed) {
		t.Errorf("Acquire: %v", err)
	}
}

// TestJoinNeedsALiveContext, as every acquire does.
func TestJoinNeedsALiveContext(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	outer := try(t, c, "n")
	ctx, cancel := context.WithCancel(outer.Context())
	cancel()
	if _, err := c.Acquire(ctx, "n", leasetable.WithJoin()); !errors.Is(err, context.Canceled) || !errors.Is(err, leasetable.ErrNotAcquired) {
		t.Errorf("told %v", err)
	}
	release(t, outer)
}

// TestJoiningWhileTheOuterLeaseEnds: goroutines join, extend and release while the outer holder
// releases and acquires again. Every joined lease has the token of the outer one, and each has
// ended with it.
func TestJoiningWhileTheOuterLeaseEnds(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	for range 50 {
		outer := acquire(t, c, "n")
		ctx := context.WithoutCancel(outer.Context())
		var wg sync.WaitGroup
		joined := make(chan *leasetable.Lease, 1000)
		stop := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					l, err := c.TryAcquire(ctx, "n", leasetable.WithJoin())
					if err != nil {
						return // it is being released
					}
					if l.Token() != outer.Token() { // it was released: this is a grant of its own
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
						return
					}
					if i%2 == 0 {
						if err := l.Release(t.Context()); err != nil && !errors.Is(err, leasetable.ErrReleased) {
							t.Error(err)
						}
						continue
					}
					select {
					case joined <- l:
					default:
						return
					}
				}
			})
		}
		<-joined
		release(t, outer)
		close(stop)
		wg.Wait()
		close(joined)
		for l := range joined {
			if l.Err() == nil || l.Context().Err() == nil {
				t.Fatalf("the outer lease is released, a joined one is held: %v, %v", l.Err(), l.Context().Err())
			}
		}
	}
	release(t, acquire(t, c, "n"))
}

// TestBusyTellsOfTheSameClient, for calls whose context does not hold the lock.
func TestBusyTellsOfTheSameClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	l := try(t, c, "n")
	for _, tc := range []struct {
		client *leasetable.Client
		own    bool
	}{{c, true}, {other, false}} {
		_, tried := tc.client.TryAcquire(t.Context(), "n")
		_, waited := tc.client.Acquire(t.Context(), "n", leasetable.WithWait(30*time.Millisecond))
		for _, err := range []error{tried, waited} {
			var busy *leasetable.BusyError
			if !errors.As(err, &busy) || busy.ThisClient != tc.own || busy.Token != l.Token() || busy.Holder != l.Holder() ||
				busy.Remaining <= 0 || busy.Remaining > 31*time.Second || strings.Contains(err.Error(), "held by this client") != tc.own {
				t.Errorf("told %v", err)
			}
		}
	}
	release(t, l)
}

// TestEveryWaiterTellsWhoHoldsTheLock: also those behind the head, which make no attempt.
func TestEveryWaiterTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	for name, holder := range map[string]*leasetable.Client{"mine": c, "theirs": f.open()} {
		l := try(t, holder, name)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := c.Acquire(ctx, name)
				var busy *leasetable.BusyError
				if !errors.As(err, &busy) || busy.Token != l.Token() || busy.Holder != l.Holder() || busy.ThisClient != (name == "mine") {
					t.Errorf("%s: told %v", name, err)
				}
			})
		}
		pgtest.Eventually(t, 10*time.Second, "all wait", func() bool {
			return leasetable.Waiting(c, name) == 3 && (name == "mine" || leasetable.HeadWaits(c, name))
		})
		cancel()
		wg.Wait()
		release(t, l)
	}
}

// TestANestedAcquireOnADeadServer: whether another client's lease is of the same lock is not known.
// The acquire reports the failure.
func TestANestedAcquireOnADeadServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	l := try(t, f.open(), "n")
	proxy.Refuse(true)
	proxy.Sever()
	if _, err := c.TryAcquire(l.Context(), "n", leasetable.WithJoin()); !errors.Is(err, leasetable.ErrUnavailable) {
		t.Errorf("told %v", err)
	}
	proxy.Refuse(false)
	release(t, l)
}
