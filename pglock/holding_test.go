package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func (f fixture) version(name string) int64 {
	f.t.Helper()
	return value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = $1", name)
}

// TestMaxHold: renewals stop, the holder is told while it still holds the lease, and then the lease
// is lost. It makes no difference whether the timer or a renewal is first after a suspension.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]bool{"told": false, "suspended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open()
			const ttl, every, most = 5 * time.Second, 100 * time.Millisecond, time.Second
			began := time.Now()
			l := try(t, c, "n", pglock.WithTTL(ttl), pglock.WithRenewEvery(every), pglock.WithMaxHold(most))
			if suspended {
				pglock.StopMaxHoldTimer(l)
				rest(t, time.Until(began.Add(most)))
			} else {
				ends(t, "the holder is told", l.ReleaseRequested())
				if held := time.Since(began); held < most-ttl/10 { // it counts from the grant, as the server tells its time
					t.Errorf("told after %v", held)
				}
				if reason := l.ReleaseReason(); !strings.Contains(reason, "WithMaxHold") {
					t.Errorf("the reason is %q", reason)
				}
				if err := l.Err(); err != nil && time.Since(began) < most+ttl/2 {
					t.Errorf("told too late: %v", err)
				}
			}
			if f.version("n") < 2 { // the control: it was renewed
				t.Error("no renewal before")
			}
			var last int64
			pgtest.Eventually(t, "renewals stop", func() bool {
				before := last
				last = f.version("n")
				rest(t, 5*every)
				return last == before
			})
			check(t, l.Err())
			ends(t, "the lease is lost", l.Done())
			if held := time.Since(began); held < most+ttl/2 {
				t.Errorf("lost %v after the grant", held)
			}
			var lost *pglock.LostError
			if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrLost) || !errors.Is(err, pglock.ErrMaxHold) ||
				!errors.As(err, &lost) || !strings.Contains(lost.Reason, "WithMaxHold") || strings.Contains(err.Error(), "renewal:") {
				t.Errorf("the cause is %v", err)
			}
			fails(t, "Release", l.Release(t.Context()), pglock.ErrMaxHold)
			if f.version("n") != last {
				t.Error("it was renewed after the longest hold")
			}
			release(t, acquire(t, c, "n"))
		})
	}
}

// TestMaxHoldLimitsExtend: an extension up to the longest hold and a TTL is made, a longer one is
// refused and changes nothing. After the longest hold, none is made.
func TestMaxHoldLimitsExtend(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ttl, margin, most = 10 * time.Second, time.Second, 30 * time.Second
	began := time.Now()
	l := try(t, f.open(), "n", pglock.WithTTL(ttl), pglock.WithSafetyMargin(margin), pglock.WithRenewEvery(0), pglock.WithMaxHold(most))
	check(t, l.Extend(t.Context(), 25*time.Second))
	before, version := l.Deadline(), f.version("n")
	if err := l.Extend(t.Context(), most+ttl); !errors.Is(err, pglock.ErrInvalidOption) || !strings.Contains(err.Error(), "WithMaxHold") {
		t.Errorf("beyond the limit: %v", err)
	}
	if !l.Deadline().Equal(before) || f.version("n") != version || l.Err() != nil {
		t.Errorf("a refused extension changed the lease: %v", l.Err())
	}
	if latest := began.Add(most + ttl - margin); l.Deadline().After(latest.Add(time.Second)) {
		t.Errorf("the deadline is %v after the latest", l.Deadline().Sub(latest))
	}
	pglock.RecordExtension(l, time.Hour) // as a renewal that was sent long after it was due
	if latest := time.Now().Add(most + ttl - margin); l.Deadline().After(latest) {
		t.Errorf("the deadline is %v after the latest", l.Deadline().Sub(latest))
	}
	release(t, l)

	// At 2 s, 53 s are left. An extension to 53.5 s is not beyond the latest deadline yet.
	l = try(t, f.open(), "m", pglock.WithTTL(time.Minute), pglock.WithSafetyMargin(5*time.Second), pglock.WithRenewEvery(0), pglock.WithMaxHold(2*time.Second))
	ends(t, "the holder is told", l.ReleaseRequested())
	version = f.version("m")
	check(t, l.Extend(t.Context(), 10*time.Second))
	fails(t, "after the longest hold", l.Extend(t.Context(), 53500*time.Millisecond), pglock.ErrInvalidOption)
	if f.version("m") != version {
		t.Error("it was renewed after the longest hold")
	}
	release(t, l)
}

// TestLockDelay: nobody gets the lock of a holder that was cut off until the delay after its
// deadline. The control has no delay.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	const ttl, delay = time.Second, 3 * time.Second
	for name, delay := range map[string]time.Duration{"delay": delay, "control": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, far := f.proxied()
			cut := far.openUnclosed()
			other := f.open()
			l := try(t, cut, "n", pglock.WithTTL(ttl), pglock.WithLockDelay(delay))
			pgtest.Eventually(t, "a renewal", func() bool { return f.version("n") > 1 })
			stopped := make(chan time.Time, 1)
			context.AfterFunc(l.Context(), func() { stopped <- time.Now() })
			if left := time.Until(l.Deadline()); left > ttl {
				t.Errorf("the holder trusts its lease for %v", left)
			}
			var busy *pglock.BusyError
			if _, err := other.TryAcquire(t.Context(), "n", pglock.WithBarging()); !errors.As(err, &busy) || busy.Remaining > ttl+delay || busy.Remaining < delay {
				t.Errorf("another's try: %v", err)
			}
			proxy.Cut()
			next := acquire(t, other, "n")
			gap := time.Since(<-stopped)
			t.Logf("granted %v after the holder stopped (TTL %v, delay %v)", gap.Round(time.Millisecond), ttl, delay)
			if gap < delay || delay == 0 && gap > 2*time.Second {
				t.Errorf("granted %v after the holder stopped", gap)
			}
			proxy.Heal()
			check(t, cut.Close(context.Background()))
			release(t, next)
		})
	}
}

// TestLockDelayAfterARelease: there is none. Hand-offs and other clients get the lock at once.
func TestLockDelayAfterARelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithLockDelay(time.Hour)}
	c, other := f.open(), f.open()
	release(t, try(t, c, "n", opts...))
	l := try(t, other, "n", opts...)
	got := async(t, other.Lock("n"), opts...)
	pgtest.Eventually(t, "it waits", func() bool { return pglock.Waiting(other, "n") == 1 })
	release(t, l)
	l = next(t, got)
	if left := time.Until(l.Deadline()); left > time.Minute {
		t.Errorf("after a hand-off the holder trusts its lease for %v", left)
	}
	if left := time.Until(f.expiry("n")); left < time.Hour {
		t.Errorf("after a hand-off the server keeps the lock for %v", left)
	}
	// An extension adds the delay to what the server keeps, and not to what the holder trusts.
	must(t, l.Extend(t.Context(), 10*time.Minute))
	if left := time.Until(l.Deadline()); left > 11*time.Minute {
		t.Errorf("after an extension the holder trusts its lease for %v", left)
	}
	if left := f.expiry("n").Sub(l.Deadline()); left < time.Hour {
		t.Errorf("after an extension the server keeps the lock for %v after the deadline", left)
	}
	release(t, l)
	release(t, try(t, c, "n"))
}

// TestLockDelayAfterALateRenewal: a renewal that is answered after the loss is not undone, because
// others would get the lock without the delay. The control is.
func TestLockDelayAfterALateRenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	late := func(name string, opts ...pglock.LeaseOption) {
		l := try(t, c, name, append(opts, pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))...)
		ends(t, "the lease is lost", l.Done())
		f.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() + interval '1 hour' WHERE name = $1", name)
		pglock.ReleaseLost(l)
	}
	late("delay", pglock.WithLockDelay(time.Minute))
	late("control")
	until(f, "the control is released", true, "SELECT holder IS NULL FROM pglock.distributed_locks WHERE name = 'control'")
	is(f, "the lock was freed without the delay", false, "SELECT holder IS NULL FROM pglock.distributed_locks WHERE name = 'delay'")
}

// TestLockDelayIsNotTrusted: the last part of the server's promise is for the others, also when the
// grant was recognized after a lost answer, and part of the promise has passed.
func TestLockDelayIsNotTrusted(t *testing.T) {
	t.Parallel()
	opts := []pglock.LeaseOption{pglock.WithTTL(10 * time.Second), pglock.WithSafetyMargin(time.Second), pglock.WithLockDelay(time.Minute)}
	for remaining, want := range map[time.Duration]time.Duration{
		70 * time.Second:  9 * time.Second, // just granted
		65 * time.Second:  4 * time.Second, // granted 5 s ago
		500 * time.Second: 9 * time.Second, // extended before
	} {
		if got, err := pglock.TrustedFor(remaining, opts...); err != nil || got != want {
			t.Errorf("of %v, %v are trusted, instead of %v (%v)", remaining, got, want, err)
		}
	}
}
