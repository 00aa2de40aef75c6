package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

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

// TestLockDelayAfterARelease: there is none. Hand-offs and other clients get the lock at once.
func TestLockDelayAfterARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithLockDelay(time.Hour)}
		c, other := f.open(), f.open()
		release(t, try(t, c, "n", opts...))
		l := try(t, other, "n", opts...)
		got := async(t, other.Lock("n"), opts...)
		synctest.Wait()
		release(t, l)
		l = next(t, got)
		if left := time.Until(l.Deadline()); left > time.Minute {
			t.Errorf("after a hand-off the holder trusts its lease for %v", left)
		}
		if left := f.left("n"); left < time.Hour {
			t.Errorf("after a hand-off the server keeps the lock for %v", left)
		}
		// An extension adds the delay to what the server keeps, and not to what the holder trusts.
		must(t, l.Extend(t.Context(), 10*time.Minute))
		if left := time.Until(l.Deadline()); left > 11*time.Minute {
			t.Errorf("after an extension the holder trusts its lease for %v", left)
		}
		if left := f.left("n") - time.Until(l.Deadline()); left < time.Hour {
			t.Errorf("after an extension the server keeps the lock for %v after the deadline", left)
		}
		release(t, l)
		release(t, try(t, c, "n"))
	})
}

// TestMaxHoldLimitsExtend: an extension up to the longest hold and a TTL is made, a longer one is
// refused and changes nothing. After the longest hold, none is made.
func TestMaxHoldLimitsExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const ttl, margin, most = 10 * time.Second, time.Second, 30 * time.Second
		began := time.Now()
		l := try(t, f.open(), "n", pglock.WithTTL(ttl), pglock.WithSafetyMargin(margin), pglock.WithRenewEvery(0), pglock.WithMaxHold(most))
		check(t, l.Extend(t.Context(), 25*time.Second))
		before, left := l.Deadline(), f.left("n")
		if err := l.Extend(t.Context(), most+ttl); !errors.Is(err, pglock.ErrInvalidOption) || !strings.Contains(err.Error(), "WithMaxHold") {
			t.Errorf("beyond the limit: %v", err)
		}
		if !l.Deadline().Equal(before) || f.left("n") != left || l.Err() != nil {
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
		left = f.left("m")
		check(t, l.Extend(t.Context(), 10*time.Second))
		fails(t, "after the longest hold", l.Extend(t.Context(), 53500*time.Millisecond), pglock.ErrInvalidOption)
		if f.left("m") != left {
			t.Error("it was renewed after the longest hold")
		}
		release(t, l)
	})
}

// TestMaxHold: renewals stop, the holder is told while it still holds the lease, and then the lease
// is lost. It makes no difference whether the timer or a renewal is first after a suspension.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]bool{"told": false, "suspended": true} {
		bubbles(t, name, func(t *testing.T, f fake) {
			c := f.open()
			const ttl, every, most = 5 * time.Second, 100 * time.Millisecond, time.Second
			began := time.Now()
			l := try(t, c, "n", pglock.WithTTL(ttl), pglock.WithRenewEvery(every), pglock.WithMaxHold(most))
			first := f.expiry("n")
			if suspended {
				pglock.StopMaxHoldTimer(l)
				rest(t, most)
			} else {
				ends(t, "the holder is told", l.ReleaseRequested())
				if held := time.Since(began); held != most {
					t.Errorf("told after %v", held)
				}
				if reason := l.ReleaseReason(); !strings.Contains(reason, "WithMaxHold") {
					t.Errorf("the reason is %q", reason)
				}
			}
			last := f.expiry("n")
			if !last.After(first) {
				t.Error("control: no renewal before")
			}
			rest(t, ttl/2)
			check(t, l.Err())
			if now := f.expiry("n"); now.After(last.Add(every)) {
				t.Errorf("renewed by %v after the longest hold", now.Sub(last))
			}
			ends(t, "the lease is lost", l.Done())
			var lost *pglock.LostError
			if err := context.Cause(l.Context()); !errors.Is(err, pglock.ErrLost) || !errors.Is(err, pglock.ErrMaxHold) ||
				!errors.As(err, &lost) || !strings.Contains(lost.Reason, "WithMaxHold") || strings.Contains(err.Error(), "renewal:") {
				t.Errorf("the cause is %v", err)
			}
			fails(t, "Release", l.Release(t.Context()), pglock.ErrMaxHold)
			release(t, acquire(t, c, "n"))
		})
	}
}

// TestLockDelay: nobody gets the lock of a holder that was cut off until the delay after its
// deadline. The control has no delay.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	const ttl, delay = time.Second, 3 * time.Second
	for name, delay := range map[string]time.Duration{"delay": delay, "control": 0} {
		bubbles(t, name, func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			cut := far.openUnclosed()
			other := f.open()
			l := try(t, cut, "n", pglock.WithTTL(ttl), pglock.WithLockDelay(delay))
			rest(t, 2*ttl)
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

// TestMinHold: however the first grant ends, the next one is made d after it by the server's clock,
// and soon then. In the controls, there is no such time, or it is over.
func TestMinHold(t *testing.T) {
	t.Parallel()
	const d = 3 * time.Second
	minHold := pglock.WithMinHold(d)
	for name, tc := range map[string]struct {
		client []pglock.Option
		lease  []pglock.LeaseOption
		end    func(t *testing.T, c *pglock.Client, l *pglock.Lease)
		local  bool // the waiter is one of the same client
		held   time.Duration
		free   bool // at the end
	}{
		"released":            {lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"released, polling":   {client: []pglock.Option{pglock.WithPollOnly()}, lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"released in a batch": {client: []pglock.Option{pglock.WithBatches(64, true)}, lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"no hand-off":         {lease: []pglock.LeaseOption{minHold}, local: true, end: releaseIt},
		"default of a client": {client: []pglock.Option{minHold}, end: releaseIt},
		"client closed": {lease: []pglock.LeaseOption{minHold}, end: func(t *testing.T, c *pglock.Client, _ *pglock.Lease) {
			t.Helper()
			check(t, c.Close(t.Context()))
		}},
		"holder dead": {lease: []pglock.LeaseOption{minHold, pglock.WithTTL(500 * time.Millisecond)}, end: func(t *testing.T, _ *pglock.Client, l *pglock.Lease) {
			t.Helper()
			if _, err := l.HandOver(); err != nil { // and nobody adopts it
				t.Error(err)
			}
		}},
		"adopted": {end: func(t *testing.T, c *pglock.Client, l *pglock.Lease) {
			t.Helper()
			if _, err := l.HandOver(); err != nil {
				t.Error(err)
			}
			adopted, err := c.Adopt(t.Context(), l.Fence(), minHold)
			must(t, err)
			release(t, adopted)
		}},
		"control: none":       {end: releaseIt, free: true},
		"control: it is over": {lease: []pglock.LeaseOption{pglock.WithMinHold(time.Microsecond)}, end: releaseIt, free: true},
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			c, other := f.openUnclosed(tc.client...), f.open(tc.client...)
			l := try(t, c, "n", append([]pglock.LeaseOption{pglock.WithTTL(30 * time.Second)}, tc.lease...)...)
			granted := f.row("n").AcquiredAt
			waiter := other
			if tc.local {
				waiter = c
			}
			got := async(t, waiter.Lock("n"), pglock.WithMinHold(0))
			synctest.Wait()
			tc.end(t, c, l)
			fails(t, "the first lease", l.Err(), pglock.ErrReleased)
			next := next(t, got)
			gap := f.row("n").AcquiredAt.Sub(granted)
			t.Logf("granted again after %v", gap.Round(time.Millisecond))
			if tc.free != (gap < d) || gap > d+time.Second {
				t.Errorf("granted again after %v", gap)
			}
			release(t, next)
			check(t, c.Close(t.Context()))
		})
	}
}

func releaseIt(t *testing.T, _ *pglock.Client, l *pglock.Lease) {
	t.Helper()
	began := time.Now()
	release(t, l)
	release(t, l)
	atMost(t, 2*time.Second, "Release", began)
}

// TestMinHoldAfterTheRelease: the lease is over for its holder. Its guards are refused, and others
// see that nobody holds the lock and how long it stays locked.
func TestMinHoldAfterTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const d = time.Hour
		c := f.open()
		l := try(t, c, "n", pglock.WithTTL(time.Minute), pglock.WithMinHold(d))
		if left := time.Until(l.Deadline()); left > time.Minute {
			t.Errorf("the holder trusts its lease for %v", left)
		}
		check := func(fenced func(context.Context, fencing.Tx, fencing.Fence) error) error {
			tx := f.begin()
			defer func() { _ = tx.Rollback(t.Context()) }()
			return fenced(t.Context(), tx, l.Fence())
		}
		for what, fenced := range map[string]func(context.Context, fencing.Tx, fencing.Fence) error{"check": fencing.Check, "bind": fencing.Bind} {
			if err := check(fenced); err != nil {
				t.Errorf("control: %s while the lease is held: %v", what, err)
			}
		}
		release(t, l)
		for what, fenced := range map[string]func(context.Context, fencing.Tx, fencing.Fence) error{"check": fencing.Check, "bind": fencing.Bind} {
			if err := check(fenced); !errors.Is(err, fencing.ErrStale) {
				t.Errorf("%s after the release: %v", what, err)
			}
		}
		fails(t, "Adopt after the release", second(c.Adopt(t.Context(), l.Fence())), fencing.ErrStale)
		for what, opts := range map[string][]pglock.LeaseOption{"a try": nil, "a barging try": {pglock.WithBarging()}} {
			var busy *pglock.BusyError
			if _, err := c.TryAcquire(t.Context(), "n", opts...); !errors.As(err, &busy) || busy.Holder != "" || busy.Remaining > d || busy.Remaining < d/2 {
				t.Errorf("%s: %v", what, err)
			}
		}
		if k, err := c.Get(t.Context(), "n"); err != nil || k.Held() || k.Holder != "" || k.Remaining < d/2 {
			t.Errorf("Get: %+v, %v", k, err)
		}
	})
}

// TestMinHoldKeepsTheOrderOfTheQueue: the time of a release that is long over does not make the
// queue skip its head.
func TestMinHoldKeepsTheOrderOfTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		l := try(t, f.open(), "n", pglock.WithMinHold(4*time.Second))
		f.ghost("n")
		release(t, l)
		ends := f.expiry("n")
		first, second := f.waits(f.open().Lock("n")), f.waits(f.open().Lock("n"))
		var rest <-chan *pglock.Lease
		select { // either of them may find the silent head first
		case l = <-first:
			rest = second
		case l = <-second:
			rest = first
		}
		if early := time.Since(ends); early < timing.HeadGrace {
			t.Errorf("the head of the queue was skipped %v after the lock was free", early)
		}
		release(t, l)
		release(t, next(t, rest))
	})
}
