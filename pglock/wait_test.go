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

// TestI6_WaitersHoldNoConnection counts connections on the server while many wait in one process.
func TestI6_WaitersHoldNoConnection(t *testing.T) {
	t.Parallel()
	const waiters = 300
	url := pgtest.Database(t)
	f := on(t, url)
	c := f.open(pglock.WithMaxConns(3))
	l := try(t, c, "n")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if _, err := c.Acquire(ctx, "n"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	// P15, P18: while all of them wait, other calls get a connection.
	for range 20 {
		release(t, try(t, c, "other"))
	}
	if n := value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%'"); n > 3+1 { // plus the listening connection
		t.Errorf("%d connections for %d waiters", n, waiters)
	}
	pgtest.Eventually(t, 5*time.Second, "a moment in which nobody is in a transaction", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%' AND state <> 'idle'") == 0
	})
	cancel()
	wg.Wait()
	release(t, l)
}

// TestP22_RetriesDoNotComeTogether compares the pauses of several waiters.
func TestP22_RetriesDoNotComeTogether(t *testing.T) {
	t.Parallel()
	const waiters, pauses = 50, 12
	last := map[time.Duration]int{}
	for range waiters {
		var sum time.Duration
		next := pglock.NewBackoff()
		for range pauses {
			d := next()
			if d <= 0 || d > 400*time.Millisecond {
				t.Fatalf("a pause of %v", d)
			}
			sum += d
		}
		last[sum.Round(time.Millisecond)]++
	}
	for at, n := range last {
		if n > waiters/5 {
			t.Errorf("%d of %d waiters try again in the same millisecond, %v after they began together", n, waiters, at)
		}
	}
}

// TestP22_OptionsAreNotSpent passes one set of options to many calls.
func TestP22_OptionsAreNotSpent(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	opts := []pglock.LeaseOption{pglock.WithTTL(time.Minute), pglock.WithHolder("h")}
	for range 3 {
		l := acquire(t, c, "n", opts...)
		if l.Holder() != "h" || time.Until(l.Deadline()) < 50*time.Second {
			t.Errorf("holder %q, deadline in %v", l.Holder(), time.Until(l.Deadline()))
		}
		release(t, l)
	}
}

// TestAWaiterIsGrantedSoonAfterTheHoldersExpiry: a dead holder delays by its TTL and hardly more.
func TestAWaiterIsGrantedSoonAfterTheHoldersExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	dead := try(t, f.open(), "n", pglock.WithTTL(1500*time.Millisecond), pglock.WithRenewEvery(0))
	expiry := f.stored("n")
	l := acquire(t, f.open(), "n")
	late := value[time.Time](f, "SELECT acquired_at FROM pglock.distributed_locks WHERE name = 'n'").Sub(expiry)
	if late < 0 || late > time.Second {
		t.Errorf("granted %v after the expiry", late)
	}
	if l.Token() <= dead.Token() {
		t.Errorf("token %d after %d", l.Token(), dead.Token())
	}
	release(t, l)
}

// TestRowSecurityDoesNotMakeAcquireSpin: a policy hides the row of a held lock, so that each answer
// looks as if another caller had been faster.
func TestRowSecurityDoesNotMakeAcquireSpin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).open(pglock.WithPollOnly())
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) " +
		"VALUES ('hidden', pglock.next_fencing_token(), 1, 'somebody', clock_timestamp(), clock_timestamp() + interval '1 hour')")
	f.sql("ALTER TABLE pglock.distributed_locks ENABLE ROW LEVEL SECURITY")
	f.sql("CREATE POLICY visible ON pglock.distributed_locks USING (holder IS DISTINCT FROM 'somebody')")
	release(t, try(t, c, "visible"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	before := proxy.Stats().ToServer
	_, err := c.Acquire(ctx, "hidden")
	if !errors.Is(err, pglock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: %v", err)
	}
	if sent := proxy.Stats().ToServer - before; sent > 300_000 {
		t.Errorf("%d bytes were sent in 2 s", sent)
	}
}
