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

// halt halts the server and returns a function that resumes it, as does the end of the test.
func halt(t *testing.T, server *testserver.Server) (resume func()) {
	t.Helper()
	must(t, server.Pause())
	resume = sync.OnceFunc(func() {
		check(t, server.Resume())
	})
	t.Cleanup(resume)
	return resume
}

// settled closes the client and waits until the server has finished all its statements.
func (f fixture) settled(c *pglock.Client) {
	f.t.Helper()
	check(f.t, c.Close(f.t.Context()))
	until(f, "the client's connections end", 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%'")
}
