package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// slower runs a test whose times are in proportion to each other, and runs it again with all of them two
// times and four times as long if it fails, since a busy machine adds its own time to each of them.
func slower(t *testing.T, test func(factor time.Duration) error) {
	t.Helper()
	var err error
	for factor := time.Duration(1); factor <= 4; factor *= 2 {
		if err = test(factor); err == nil {
			return
		}
		t.Logf("with times %d times as long: %v", factor, err)
	}
	t.Error(err)
}

// TestASlowServerLosesNoLease: the round trip takes a sixth of the TTL, or 30 % of it. One caller or many at
// a time are granted their leases, again and again, and keep each for longer than its TTL, with a handful of
// connections.
func TestASlowServerLosesNoLease(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		roundTrip, hold time.Duration
		callers, rounds int
	}{
		{480 * time.Millisecond, 10 * time.Second, 1, 1},
		{900 * time.Millisecond, 10 * time.Second, 1, 1},
		{510 * time.Millisecond, 4500 * time.Millisecond, 16, 3},
	} {
		t.Run(fmt.Sprint(tc.roundTrip, ", callers: ", tc.callers), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			run := func(try int) error {
				proxy, far := f.proxied()
				defer proxy.Delay(0) // for the cleanup
				c := far.open(pglock.WithTTL(3 * time.Second))
				release(t, acquire(t, c, "first")) // opens a connection and prepares its statements
				proxy.Delay(tc.roundTrip / 2)      // each way
				failures := make(chan error, tc.callers*tc.rounds)
				var wg sync.WaitGroup
				for i := range tc.callers {
					wg.Go(func() {
						for round := range tc.rounds {
							name := fmt.Sprint(try, " ", i)
							l, err := c.Acquire(t.Context(), name)
							for began := time.Now(); err == nil && time.Since(began) < tc.hold; rest(t, 100*time.Millisecond) {
								// I3, with several renewals in flight: read before the expiry, the deadline is earlier.
								if deadline, expiry := l.Deadline(), f.expiry(name); l.Err() == nil && !deadline.Before(expiry) {
									t.Errorf("trusted until %v after the server's expiry", deadline.Sub(expiry))
								}
								err = l.Err()
							}
							if err == nil {
								err = l.Release(t.Context())
							}
							if err != nil {
								failures <- fmt.Errorf("caller %d, round %d: %w", i, round, err)
							}
						}
					})
				}
				wg.Wait()
				if n := proxy.Stats().Accepted; n > 24 {
					return fmt.Errorf("%d connections were made", n)
				}
				select {
				case err := <-failures:
					return err
				default:
					return nil
				}
			}
			// Bounds of connections do not grow with the TTL, so a busy machine gets other tries, not longer times.
			for try := range 3 {
				err := run(try)
				if err == nil {
					return
				}
				t.Logf("try %d: %v", try, err)
			}
			t.Error("it failed again and again")
		})
	}
}

// TestP47_RenewalsDoNotComeLate: a renewal planned shortly before the deadline, by a twentieth of the TTL,
// is never later than planned.
func TestP47_RenewalsDoNotComeLate(t *testing.T) {
	t.Parallel()
	const leases = 20
	f := newFixture(t)
	slower(t, func(factor time.Duration) error {
		c := f.open(pglock.WithTTL(factor*4*time.Second), pglock.WithSafetyMargin(factor*400*time.Millisecond), pglock.WithRenewEvery(factor*3400*time.Millisecond))
		var all []*pglock.Lease
		for i := range leases {
			all = append(all, try(t, c, fmt.Sprint(factor, " ", i)))
		}
		rest(t, factor*12*time.Second)
		lost := 0
		for _, l := range all {
			if l.Err() != nil {
				lost++
			}
			_ = l.Release(t.Context()) // it may be lost
		}
		if lost > 0 {
			return fmt.Errorf("%d of %d leases were lost on a healthy server", lost, leases)
		}
		return nil
	})
}

// TestExtendOnASlowServer: the round trip is longer than any fixed allowance for it.
func TestExtendOnASlowServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	l := try(t, c, "n", pglock.WithTTL(10*time.Second), pglock.WithRenewEvery(0))
	proxy.Delay(time.Second) // each way
	ctx := bounded(t, pgtest.Patience)
	version := value[int64](f, "SELECT version FROM pglock.distributed_locks")
	if err := l.Extend(ctx, 20*time.Second); err != nil {
		t.Errorf("Extend, with a round trip of 2 s: %v", err)
	} else if left := time.Until(l.Deadline()); left < 19*time.Second {
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
	must(t, l.Extend(t.Context(), 1700*time.Millisecond))
	if left := time.Until(f.expiry("n")); left > ttl+500*time.Millisecond {
		t.Errorf("TTL %v, Extend(1.7s): the server keeps the lock for %v", ttl, left)
	}
	release(t, l)
}

// TestP57_CloseReleasesOnACanceledContext: the usual end after a signal. It is bounded, also if the
// server does not answer.
func TestP57_CloseReleasesOnACanceledContext(t *testing.T) {
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		f := newFixture(t)
		proxy, far := f.proxied()
		c := far.openUnclosed(pglock.WithTTL(time.Minute))
		all := many(t, c, 10)
		proxy.Freeze(frozen)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := c.Close(ctx); (err != nil) != frozen {
			t.Errorf("the server is frozen: %v: Close: %v", frozen, err)
		}
		atMost(t, 7*time.Second, "Close", began)
		if n := value[int](f, grants); !frozen && n != 0 {
			t.Errorf("%d of %d locks are kept", n, len(all))
		}
		proxy.Freeze(false) // for the cleanup
	}
}

// TestCloseRepeatsAFailedRelease: the server was away during Release, and is back at Close.
func TestCloseRepeatsAFailedRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.openUnclosed(pglock.WithTTL(time.Minute))
	l := try(t, c, "n")
	proxy.Refuse(true)
	proxy.Sever()
	fails(t, "without a server", l.Release(t.Context()), pglock.ErrUnavailable)
	proxy.Refuse(false)
	check(t, c.Close(t.Context()))
	is(f, "the lock is kept", false, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
}

// TestCallersThatGiveUpOnASlowServerCostOneConnection: only the first call sends its own statement.
// The client then knows that the server is slow.
func TestCallersThatGiveUpOnASlowServerCostOneConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
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

// TestARecognizedGrantIsRenewedInTime: the answer to an acquire is lost, and the next attempt finds the
// grant when less of its TTL is left than the renewal interval. It is renewed at once. The grant is made
// older, as if that attempt had come late.
func TestARecognizedGrantIsRenewedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open()
	release(t, acquire(t, c, "n"))
	proxy.DropReplies()
	got := async(t, c.Lock("n"), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(40*time.Minute))
	until(f, "it is granted", true, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
	f.sql("UPDATE pglock.distributed_locks SET acquired_at = acquired_at - interval '45 min', expires_at = expires_at - interval '45 min'")
	proxy.Heal()
	proxy.Sever()
	l := next(t, got)
	until(f, "a renewal", true, "SELECT expires_at > clock_timestamp() + interval '50 min' FROM pglock.distributed_locks")
	check(t, l.Err())
	release(t, l)
}

// many acquires n leases, with several goroutines.
func many(t *testing.T, c *pglock.Client, n int, opts ...pglock.LeaseOption) []*pglock.Lease {
	t.Helper()
	const callers = 32
	all := make([]*pglock.Lease, n)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := caller; i < n; i += callers {
				l, err := c.TryAcquire(t.Context(), fmt.Sprint("n", i), opts...)
				if err != nil {
					t.Errorf("grant %d: %v", i, err)
					return
				}
				all[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// TestChaosAStallLosesNoLease halts the server whenever renewals are about to be due, for a fifth
// of the TTL, longer than an attempt may take. All leases are held throughout, renewed afterwards,
// and can be released. Short: 200 leases of 9 s, a stall of 1.8 s. Long: 1,000 of 30 s, three
// stalls of 6 s.
func TestChaosAStallLosesNoLease(t *testing.T) {
	t.Parallel()
	n, stalls, ttl := 200, 1, 9*time.Second
	if os.Getenv("PGLOCK_CHAOS") != "" {
		n, stalls, ttl = 1000, 3, 30*time.Second
	}
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed(pglock.WithTTL(ttl))
	all := many(t, c, n)
	for range stalls {
		rest(t, ttl*27/100) // the next renewals are due at three tenths and later
		resume := halt(t, server)
		before := make([]time.Time, n)
		for i, l := range all {
			before[i] = l.Deadline()
		}
		rest(t, ttl/5)
		resume()
		pgtest.Eventually(t, "all are renewed", func() bool {
			renewed := 0
			for i, l := range all {
				if err := l.Err(); err != nil {
					t.Fatalf("a stall of %v, with a TTL of %v: %v", ttl/5, ttl, err)
				}
				if l.Deadline().After(before[i]) {
					renewed++
				}
			}
			return renewed == n
		})
	}
	if alive := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL AND expires_at > clock_timestamp()"); alive != n {
		t.Errorf("%d of %d leases are alive on the server", alive, n)
	}
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() {
			check(t, l.Release(t.Context()))
		})
	}
	wg.Wait()
	is(f, "are held after all were released", 0, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL")
	f.settled(c)
}

// TestAStallLongerThanTheTTLLosesLeases is the control of TestChaosAStallLosesNoLease.
func TestAStallLongerThanTheTTLLosesLeases(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed(pglock.WithTTL(ttl))
	all := many(t, c, 50)
	resume := halt(t, server)
	rest(t, ttl)
	for _, l := range all {
		ends(t, "its holder is told", l.Done())
		if err := l.Err(); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%s, after a stall of %v: %v", l.Name(), ttl, err)
		}
	}
	resume()
	f.settled(c)
}

// TestLeasesOfAllLengths has them in one client: each is renewed as often as its own TTL needs.
func TestLeasesOfAllLengths(t *testing.T) {
	t.Parallel()
	const each = 30
	lengths := []time.Duration{2 * time.Second, 5 * time.Second, 12 * time.Second, 40 * time.Second}
	f := newFixture(t)
	c := f.open()
	all := map[time.Duration][]*pglock.Lease{}
	for i := range each {
		for _, ttl := range lengths {
			all[ttl] = append(all[ttl], try(t, c, fmt.Sprint(ttl, " ", i), pglock.WithTTL(ttl)))
		}
	}
	rest(t, 7*time.Second)
	renewals := func(ttl time.Duration) int {
		return value[int](f, "SELECT sum(version - 1) FROM pglock.distributed_locks WHERE name LIKE $1 || ' %'", ttl.String())
	}
	var counts []int
	for _, ttl := range lengths {
		for _, l := range all[ttl] {
			if err := l.Err(); err != nil {
				t.Errorf("TTL %v: %v", ttl, err)
			}
		}
		counts = append(counts, renewals(ttl))
	}
	t.Logf("leases of %v: %d each, %v renewals", lengths, each, counts)
	for i := range lengths[1:] {
		if counts[i] <= counts[i+1] {
			t.Errorf("leases of %v were renewed %d times, those of %v %d times", lengths[i], counts[i], lengths[i+1], counts[i+1])
		}
	}
	if counts[2] < each { // due after 4 s
		t.Errorf("%d leases of %v were renewed %d times in 7s", each, lengths[2], counts[2])
	}
}
