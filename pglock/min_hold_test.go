package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestMinHold: however the first grant ends, the next one is made d after it by the server's clock,
// and soon then. In the controls, there is no such time, or it is over.
func TestMinHold(t *testing.T) {
	t.Parallel()
	const d = 3 * time.Second
	minHold := pglock.WithMinHold(d)
	for name, tc := range map[string]struct {
		client []pglock.Option
		lease  []pglock.LeaseOption
		end    func(t *testing.T, f fixture, c *pglock.Client, l *pglock.Lease)
		local  bool // the waiter is one of the same client
		held   time.Duration
		free   bool // at the end
	}{
		"released":            {lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"released, polling":   {client: []pglock.Option{pglock.WithPollOnly()}, lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"released in a batch": {client: []pglock.Option{pglock.WithBatches(64, true)}, lease: []pglock.LeaseOption{minHold}, end: releaseIt},
		"no hand-off":         {lease: []pglock.LeaseOption{minHold}, local: true, end: releaseIt},
		"default of a client": {client: []pglock.Option{minHold}, end: releaseIt},
		"client closed": {lease: []pglock.LeaseOption{minHold}, end: func(t *testing.T, _ fixture, c *pglock.Client, _ *pglock.Lease) {
			t.Helper()
			check(t, c.Close(t.Context()))
		}},
		"holder dead": {lease: []pglock.LeaseOption{minHold, pglock.WithTTL(500 * time.Millisecond)}, end: func(t *testing.T, _ fixture, _ *pglock.Client, l *pglock.Lease) {
			t.Helper()
			if _, err := l.HandOver(); err != nil { // and nobody adopts it
				t.Error(err)
			}
		}},
		"adopted": {end: func(t *testing.T, _ fixture, c *pglock.Client, l *pglock.Lease) {
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c, other := f.openUnclosed(tc.client...), f.open(tc.client...)
			l := try(t, c, "n", append([]pglock.LeaseOption{pglock.WithTTL(30 * time.Second)}, tc.lease...)...)
			granted := value[time.Time](f, "SELECT acquired_at FROM pglock.distributed_locks")
			waiter := other
			if tc.local {
				waiter = c
			}
			got := async(t, waiter.Lock("n"), pglock.WithMinHold(0))
			pgtest.Eventually(t, "it waits", func() bool { return pglock.Waiting(waiter, "n") == 1 })
			tc.end(t, f, c, l)
			fails(t, "the first lease", l.Err(), pglock.ErrReleased)
			next := next(t, got)
			gap := value[time.Time](f, "SELECT acquired_at FROM pglock.distributed_locks").Sub(granted)
			t.Logf("granted again after %v", gap.Round(time.Millisecond))
			if tc.free != (gap < d) || gap > d+20*time.Second { // soon, even on a slow machine: not after the TTL
				t.Errorf("granted again after %v", gap)
			}
			release(t, next)
			check(t, c.Close(t.Context()))
		})
	}
}

func releaseIt(t *testing.T, _ fixture, _ *pglock.Client, l *pglock.Lease) {
	t.Helper()
	began := time.Now()
	release(t, l)
	release(t, l)
	atMost(t, 2*time.Second, "Release", began)
}

// TestMinHoldAfterTheRelease: the lease is over for its holder. Its guards are refused, and others
// see that nobody holds the lock and how long it stays locked.
func TestMinHoldAfterTheRelease(t *testing.T) {
	t.Parallel()
	const d = time.Hour
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "n", pglock.WithTTL(time.Minute), pglock.WithMinHold(d))
	if left := time.Until(l.Deadline()); left > time.Minute {
		t.Errorf("the holder trusts its lease for %v", left)
	}
	check := func(fenced func(context.Context, fencing.Tx, fencing.Fence) error) error {
		tx := begin(t, f)
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
	if n, err := c.Prune(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("pruned %d, %v", n, err)
	}
}

// TestMinHoldKeepsTheOrderOfTheQueue: the time of a release that is long over does not make the
// queue skip its head.
func TestMinHoldKeepsTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, first, second := f.open(), f.open(), f.open()
	l := try(t, holder, "n", pglock.WithMinHold(4*time.Second))
	// Another client's waiter is ahead, but polls late: its ticket is written by hand.
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('n', 'silent', clock_timestamp() + interval '1 hour')")
	release(t, l)
	ends := f.expiry("n")
	got := make(chan *pglock.Lease, 2)
	for _, c := range []*pglock.Client{first, second} {
		go func() { got <- acquire(t, c, "n") }()
		pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	}
	l = next(t, got)
	// The silent head is skipped 1.5 s after the lock is free, not at once.
	if early := time.Since(ends); early < time.Second {
		t.Errorf("the head of the queue was skipped %v after the lock was free", early)
	}
	release(t, l)
	release(t, next(t, got))
}

// TestManyNamesWithMinHoldAreReleasedOverASlowPath: a release of many names is one statement, whether the
// caller or Close ends the lease. If its answer is lost, the client asks once which grants are left.
func TestManyNamesWithMinHoldAreReleasedOverASlowPath(t *testing.T) {
	t.Parallel()
	byRelease := func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) }
	for name, tc := range map[string]struct {
		end  func(ctx context.Context, c *pglock.Client, l *pglock.Lease) error
		lost bool // the first answer
	}{
		"Release":   {end: byRelease},
		"Close":     {end: func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error { return c.Close(ctx) }},
		"no answer": {end: byRelease, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, far := f.proxied()
			var releases atomic.Int32
			proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
				if tc.lost && strings.Contains(r.SQL, "last_end = 'released'") && releases.Add(1) == 1 {
					return faultproxy.LoseReply
				}
				return faultproxy.Pass
			})
			defer proxy.Delay(0) // for the cleanup
			c := far.openUnclosed(pglock.WithTTL(10 * time.Minute))
			defer func() { check(t, c.Close(t.Context())) }()
			var locks []pglock.Lock
			for i := range 128 {
				locks = append(locks, c.Lock(fmt.Sprint("n", i)))
			}
			l, err := c.All(locks...).Acquire(t.Context(), pglock.WithMinHold(time.Hour))
			must(t, err)
			proxy.Delay(20 * time.Millisecond) // each way
			began := time.Now()
			check(t, tc.end(t.Context(), c, l))
			t.Logf("released after %v", time.Since(began))
			if tc.lost && releases.Load() != 2 {
				t.Errorf("%d release statements", releases.Load())
			}
			f.none("held locks", "SELECT count(*) FROM pglock.locks_held")
			f.none("locks that are free too early", "SELECT count(*) FROM pglock.distributed_locks WHERE expires_at < acquired_at + interval '59 min'")
		})
	}
}
