package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestASlowServerLosesNoLease: the round trip takes a sixth of the TTL, or 30 % of it.
func TestASlowServerLosesNoLease(t *testing.T) {
	t.Parallel()
	for _, roundTrip := range []time.Duration{480 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(roundTrip.String(), func(t *testing.T) {
			t.Parallel()
			slowServerLosesNoLease(t, roundTrip)
		})
	}
}

func slowServerLosesNoLease(t *testing.T, roundTrip time.Duration) {
	t.Helper()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	release(t, acquire(t, c, "n")) // opens a connection and prepares its statements
	proxy.Delay(roundTrip / 2)     // each way
	l := acquire(t, c, "n", pglock.WithTTL(3*time.Second))
	for began := time.Now(); time.Since(began) < 10*time.Second; rest(t, 100*time.Millisecond) {
		if err := l.Err(); err != nil {
			t.Fatalf("TTL 3s, round trip %v: lost after %v: %v", roundTrip, time.Since(began), err)
		}
		// I3, with several renewals in flight: read before the expiry, the deadline is earlier.
		if deadline, expiry := l.Deadline(), f.expiry("n"); !deadline.Before(expiry) {
			t.Fatalf("trusted until %v after the server's expiry", deadline.Sub(expiry))
		}
	}
	release(t, l)
	proxy.Delay(0) // for the cleanup
	if n := proxy.Stats().Accepted; n > 8 {
		t.Errorf("%d connections were made", n)
	}
}

// TestASlowServerServesManyCallers holds 16 leases of 1 s for longer than that, again and again, at
// a round trip of 170 ms. All are granted and kept, with a handful of connections.
func TestASlowServerServesManyCallers(t *testing.T) {
	t.Parallel()
	const callers, runtime, hold = 16, 10 * time.Second, 1500 * time.Millisecond
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open(pglock.WithTTL(time.Second))
	proxy.Delay(85 * time.Millisecond) // each way
	var wg sync.WaitGroup
	var granted, failed, lost atomic.Int64
	end := time.Now().Add(runtime)
	for i := range callers {
		wg.Go(func() {
			for time.Now().Before(end) {
				l, err := c.Acquire(t.Context(), fmt.Sprint("n", i))
				if err != nil {
					failed.Add(1)
					t.Logf("caller %d: %v", i, err)
					continue
				}
				granted.Add(1)
				select {
				case <-time.After(hold):
				case <-l.Done():
					lost.Add(1)
					t.Logf("caller %d: %v", i, l.Err())
				}
				if err := l.Release(t.Context()); err != nil && !errors.Is(err, pglock.ErrLost) {
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	proxy.Delay(0) // for the cleanup
	n := proxy.Stats().Accepted
	t.Logf("%d granted, %d failed, %d lost, %d connections", granted.Load(), failed.Load(), lost.Load(), n)
	if granted.Load() < callers*3 || failed.Load() > 0 || lost.Load() > 0 || n > 12 {
		t.Errorf("%d granted, %d failed, %d lost, %d connections", granted.Load(), failed.Load(), lost.Load(), n)
	}
}

// TestP47_RenewalsDoNotComeLate: a renewal planned shortly before the deadline is never later than
// planned.
func TestP47_RenewalsDoNotComeLate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const leases = 20
	lost := leases
	for round := range 3 { // a renewal has 50 ms: a busy machine may take longer once
		c := f.open(pglock.WithTTL(time.Second), pglock.WithSafetyMargin(100*time.Millisecond), pglock.WithRenewEvery(850*time.Millisecond))
		var all []*pglock.Lease
		for i := range leases {
			all = append(all, try(t, c, fmt.Sprintf("n%d of round %d", i, round)))
		}
		rest(t, 5*time.Second)
		lost = 0
		for _, l := range all {
			if l.Err() != nil {
				lost++
			}
			_ = l.Release(t.Context()) // it may be lost
		}
		if lost == 0 {
			return
		}
	}
	t.Errorf("%d of %d leases were lost on a healthy server", lost, leases)
}

// TestExtendOnASlowServer: the round trip is longer than any fixed allowance for it.
func TestExtendOnASlowServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	l := try(t, c, "n", pglock.WithTTL(10*time.Second), pglock.WithRenewEvery(0))
	proxy.Delay(600 * time.Millisecond) // each way
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	version := value[int64](f, "SELECT version FROM pglock.distributed_locks")
	if err := l.Extend(ctx, 20*time.Second); err != nil {
		t.Errorf("Extend, with a round trip of 1.2s: %v", err)
	} else if left := time.Until(l.Deadline()); left < 20*time.Second-50*time.Millisecond {
		t.Errorf("trusted for %v only", left)
	}
	if n := value[int64](f, "SELECT version FROM pglock.distributed_locks") - version; n > 2 {
		t.Errorf("Extend took %d renewals", n)
	}
	proxy.Delay(0)
	release(t, l)
}

// TestExtendKeepsAShortLeaseShort: the server keeps the lock little longer than requested.
func TestExtendKeepsAShortLeaseShort(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, try(t, c, "n"))
	const ttl, margin = 2 * time.Second, 200 * time.Millisecond
	l := try(t, c, "n", pglock.WithTTL(ttl), pglock.WithSafetyMargin(margin), pglock.WithRenewEvery(0))
	rest(t, 300*time.Millisecond)
	if err := l.Extend(t.Context(), 1700*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(f.expiry("n")); left > ttl+500*time.Millisecond {
		t.Errorf("TTL %v, Extend(1.7s): the server keeps the lock for %v", ttl, left)
	}
	release(t, l)
}

// TestP57_CloseReleasesOnACanceledContext: the usual end after a signal.
func TestP57_CloseReleasesOnACanceledContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed(pglock.WithTTL(time.Minute))
	for i := range 10 {
		try(t, c, fmt.Sprint("n", i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); n != 0 {
		t.Errorf("%d of 10 locks are kept", n)
	}
}

// TestCloseOnACanceledContextIsBounded: also if the server does not answer.
func TestCloseOnACanceledContextIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithTTL(time.Minute))
	for i := range 10 {
		try(t, c, fmt.Sprint("n", i))
	}
	proxy.Freeze(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := c.Close(ctx); err == nil {
		t.Error("Close says that all was released")
	}
	if took := time.Since(began); took > 7*time.Second {
		t.Errorf("Close took %v", took)
	}
	proxy.Freeze(false) // for the cleanup
}

// TestCloseRepeatsAFailedRelease: the server was away during Release, and is back at Close.
func TestCloseRepeatsAFailedRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithTTL(time.Minute))
	l := try(t, c, "n")
	proxy.Refuse(true)
	proxy.Sever()
	if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	proxy.Refuse(false)
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
		t.Error("the lock is kept")
	}
}

// TestCallersThatGiveUpOnASlowServerCostOneConnection: only the first call sends its own statement.
// The client then knows that the server is slow.
func TestCallersThatGiveUpOnASlowServerCostOneConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	release(t, acquire(t, c, "n")) // opens a connection and prepares its statements
	const calls, most = 20, 10     // a statement after each call revokes its grant
	before := proxy.Stats().Accepted
	proxy.Delay(100 * time.Millisecond) // each way
	for range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told %v", err)
		}
		cancel()
		rest(t, 300*time.Millisecond)
	}
	proxy.Delay(0) // for the cleanup
	n := proxy.Stats().Accepted - before
	t.Logf("%d connections for %d calls", n, calls)
	if n > most {
		t.Errorf("%d connections for %d calls", n, calls)
	}
	release(t, acquire(t, c, "n"))
}

// TestACallersOwnCancellationIsNoOutage: the error has the context's error, not ErrUnavailable.
func TestACallersOwnCancellationIsNoOutage(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	l := try(t, c, "n", pglock.WithRenewEvery(0))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for name, call := range map[string]func() error{
		"Get":    func() error { _, err := c.Get(ctx, "n"); return err },
		"Extend": func() error { return l.Extend(ctx, time.Hour) },
	} {
		err := call()
		if errors.Is(err, pglock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("%s, with a cancelled context: %v", name, err)
		}
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	release(t, l)
}

// TestARecognizedGrantIsRenewedInTime: the answer to an acquire is lost. The next attempt finds the
// grant when less of its TTL is left than the renewal interval.
func TestARecognizedGrantIsRenewedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open()
	release(t, acquire(t, c, "n"))
	proxy.DropReplies()
	got := make(chan *pglock.Lease, 1)
	go func() {
		l, err := c.Acquire(t.Context(), "n", pglock.WithTTL(4*time.Second), pglock.WithRenewEvery(3*time.Second))
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		got <- l
	}()
	pgtest.Eventually(t, 5*time.Second, "it is granted", func() bool {
		return value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
	})
	rest(t, 2*time.Second)
	proxy.Heal()
	proxy.Sever()
	l := <-got
	if l == nil {
		return
	}
	rest(t, 4*time.Second)
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	release(t, l)
}
