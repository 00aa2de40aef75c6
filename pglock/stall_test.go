package pglock_test

import (
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
		pgtest.Eventually(t, ttl, "all are renewed", func() bool {
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
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if held := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); held != 0 {
		t.Errorf("%d are held after all were released", held)
	}
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
		within(t, 10*time.Second, "its holder is told", l.Done())
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
