package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// stored returns the expiry of the lease of that name by the server's clock.
func (f fixture) stored(name string) time.Time {
	f.t.Helper()
	return value[time.Time](f, "SELECT expires_at FROM pglock.distributed_locks WHERE name = $1", name)
}

// expiry returns the local time at which the server lets the lease expire, late by a round trip, which is the
// shortest of several.
func (f fixture) expiry(name string) (at time.Time) {
	f.t.Helper()
	shortest := time.Hour
	for tries := 0; tries < 20 && shortest > 20*time.Millisecond; tries++ {
		asked := time.Now()
		remaining := value[float64](f, "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM pglock.distributed_locks WHERE name = $1", name)
		if told := time.Now(); told.Sub(asked) < shortest {
			at, shortest = told.Add(time.Duration(remaining*float64(time.Second))), told.Sub(asked)
		}
	}
	return at
}

// TestP08_P09_TheHolderStopsBeforeAPausedServerWouldExpireIt halts all processes of the server. I3:
// the Context ends before the expiry that the server has stored.
func TestP08_P09_TheHolderStopsBeforeAPausedServerWouldExpireIt(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed()
	l := try(t, c, "n", pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(1500*time.Millisecond))
	pgtest.Eventually(t, "a renewal", func() bool {
		return value[int64](f, "SELECT version FROM pglock.distributed_locks") > 1
	})
	expiry := f.expiry("n") // the next renewal, more than a second from now, would move it
	must(t, server.Pause())
	resumed := false
	defer func() {
		if !resumed {
			_ = server.Resume()
		}
	}()
	// P09: accessors answer while a renewal hangs. This hangs if they don't.
	var held time.Time // it was still held then
	for {
		now := time.Now()
		_, _, _ = l.Token(), l.Fence(), l.Deadline()
		if l.Err() != nil || l.Context().Err() != nil {
			break
		}
		held = now
		rest(t, 10*time.Millisecond)
	}
	ends(t, "the context ends while the server is halted", l.Done())
	if !errors.Is(context.Cause(l.Context()), pglock.ErrLost) {
		t.Errorf("cause: %v", context.Cause(l.Context()))
	}
	must(t, server.Resume())
	resumed = true
	if ahead := expiry.Sub(held); ahead <= 0 {
		t.Errorf("the holder still held %v after the server's expiry", -ahead)
	} else {
		t.Logf("I3: the holder held until %v before the server's expiry (TTL 3s, margin 300ms, server halted)", ahead.Round(time.Millisecond))
	}
	check(t, c.Close(context.Background()))
}

type valueKey struct{}

// TestI3_ContextsReadTheClock: a process that slept past the deadline learns of it by the first call of Err
// or Done of the lease and of its contexts, although no timer has fired.
func TestI3_ContextsReadTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		own := func(l *pglock.Lease) context.Context { return l.Context() }
		derived := func(l *pglock.Lease) context.Context {
			ctx, cancel := l.WithContext(context.Background())
			t.Cleanup(cancel)
			return ctx
		}
		closed := func(done <-chan struct{}) bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		}
		for name, ended := range map[string]func(l *pglock.Lease, ctx context.Context) bool{
			"Err":              func(_ *pglock.Lease, ctx context.Context) bool { return ctx.Err() != nil },
			"Done":             func(_ *pglock.Lease, ctx context.Context) bool { return closed(ctx.Done()) },
			"the lease's Err":  func(l *pglock.Lease, _ context.Context) bool { return l.Err() != nil },
			"the lease's Done": func(l *pglock.Lease, _ context.Context) bool { return closed(l.Done()) },
		} {
			for i, of := range []func(*pglock.Lease) context.Context{own, derived} {
				l := try(t, c, fmt.Sprint(name, i), pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
				pglock.StopTimer(l)
				ctx := of(l)
				rest(t, time.Until(l.Deadline()))
				if !ended(l, ctx) || !errors.Is(context.Cause(ctx), pglock.ErrLost) || !errors.Is(l.Err(), pglock.ErrLost) {
					t.Errorf("%s of context %d: cause %v, the lease %v", name, i, context.Cause(ctx), l.Err())
				}
			}
		}
	})
}

// TestWithContext ends the context by each of its two parents. The lease is not affected.
func TestWithContext(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l := try(t, c, "n")
		why := errors.New("the service is stopped")
		parent, stop := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, "v"))
		ctx, cancel := l.WithContext(parent)
		defer cancel()
		if ctx.Err() != nil || ctx.Value(valueKey{}) != "v" {
			t.Errorf("at first: %v, value %v", ctx.Err(), ctx.Value(valueKey{}))
		}
		child, cancelChild := context.WithCancel(ctx)
		defer cancelChild()
		stop(why)
		ends(t, "the parent's end", ctx.Done())
		ends(t, "the parent's end, in a child", child.Done())
		if !errors.Is(context.Cause(ctx), why) || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the parent ended: %v, cause %v", ctx.Err(), context.Cause(ctx))
		}

		ctx, cancel = l.WithContext(t.Context())
		cancel()
		if !errors.Is(ctx.Err(), context.Canceled) || l.Err() != nil {
			t.Errorf("cancelled: %v, the lease %v", ctx.Err(), l.Err())
		}

		ctx, cancel = l.WithContext(t.Context())
		defer cancel()
		child, cancelChild = context.WithCancel(ctx)
		defer cancelChild()
		release(t, l)
		ends(t, "the lease's end, in a child", child.Done())
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), pglock.ErrReleased) || !errors.Is(context.Cause(child), pglock.ErrReleased) {
			t.Errorf("released: %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		late, cancel := l.WithContext(t.Context())
		defer cancel()
		if late.Err() == nil {
			t.Error("made after the lease's end: not done")
		}
	})
}

// TestGuardOfAnEndedLease: writers find ErrStale, whether the client or the server notices the end.
func TestGuardOfAnEndedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		late := try(t, c, "late", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
		released := try(t, c, "released")
		release(t, released)
		ends(t, "the deadline", late.Done())
		for l, why := range map[*pglock.Lease]error{late: pglock.ErrLost, released: pglock.ErrReleased} {
			for name, check := range map[string]func(context.Context, fencing.Tx) error{"Guard": l.Guard, "Bind": l.Bind} {
				err := check(t.Context(), f.begin())
				var stale *fencing.StaleError
				if !errors.Is(err, why) || !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) || stale.Token != l.Token() {
					t.Errorf("%s of a lease that has ended: %v", name, err)
				}
			}
		}
	})
}

// TestI3_TheHolderStopsBeforeOthersAreGranted cuts the holder's network, without notice to either
// side, while another client waits for the lock.
func TestI3_TheHolderStopsBeforeOthersAreGranted(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		cut := far.openUnclosed()
		other := f.open()
		l := try(t, cut, "n", pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(1500*time.Millisecond))
		rest(t, 5*time.Second) // it is renewed
		stopped := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { stopped <- time.Now() })
		expiry := f.expiry("n")
		proxy.Cut()
		next := acquire(t, other, "n")
		granted := time.Now()
		select {
		case at := <-stopped:
			if !at.Before(expiry) || !at.Before(granted) {
				t.Errorf("stopped at %v, the server's expiry was %v, the next grant %v", at, expiry, granted)
			}
			t.Logf("I3: the holder stopped %v before the server's expiry and %v before the next grant (TTL 3s, margin 300ms, network cut)",
				expiry.Sub(at).Round(time.Millisecond), granted.Sub(at).Round(time.Millisecond))
		default:
			t.Error("somebody else was granted the lock, and the holder's context is not done")
		}
		grows(t, l, next)
		proxy.Heal()
		check(t, cut.Close(context.Background()))
		release(t, next)
	})
}

// TestI3_ControlTrustingTheAnswersTime computes the deadline of a holder that counts the TTL from
// the answer, with no margin: the server's expiry is before it.
func TestI3_ControlTrustingTheAnswersTime(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		release(t, try(t, c, "n"))
		const delay, ttl = 300 * time.Millisecond, 4 * time.Second
		proxy.Delay(delay)
		l := try(t, c, "n", pglock.WithTTL(ttl), pglock.WithSafetyMargin(0), pglock.WithRenewEvery(0))
		naive := time.Now().Add(ttl)
		proxy.Delay(0)
		expiry := f.expiry("n")
		if l.Deadline().After(expiry) {
			t.Errorf("the deadline is %v after the server's expiry", l.Deadline().Sub(expiry))
		}
		if naive.Before(expiry) {
			t.Errorf("control: counting from the answer, the deadline would be before the expiry too")
		}
		release(t, l)
	})
}
