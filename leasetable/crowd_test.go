package leasetable_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// TestFiveThousandWaiters lets them wait for one name in one process: with one ticket and few
// connections. All waiters that stay acquire the lock.
func TestFiveThousandWaiters(t *testing.T) {
	t.Parallel()
	const waiters, stayers = 5000, 50
	f := on(t, pgtest.Database(t))
	c := f.open()
	held := try(t, f.open(), "n")
	leavers, leave := context.WithCancel(t.Context())
	var served atomic.Int32
	var wg sync.WaitGroup
	for i := range waiters {
		ctx := leavers
		if i%(waiters/stayers) == 0 {
			ctx = t.Context()
		}
		wg.Go(func() {
			l, err := c.Acquire(ctx, "n")
			switch {
			case err == nil:
				served.Add(1)
				release(t, l)
			case !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		})
	}
	pgtest.Eventually(t, 20*time.Second, "all wait", func() bool {
		return leasetable.Waiting(c, "n") == waiters && f.tickets("n") == 1
	})
	if n := value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%'"); n > 6 {
		t.Errorf("%d connections of two clients", n)
	}
	leave()
	pgtest.Eventually(t, 20*time.Second, "most leave", func() bool { return leasetable.Waiting(c, "n") == stayers })
	release(t, held)
	wg.Wait()
	if n := served.Load(); n != stayers {
		t.Errorf("%d of %d who stayed were served", n, stayers)
	}
}

// TestTooFewConnections: the server gives the role fewer connections than the clients would open.
// All callers acquire the lock nevertheless.
func TestTooFewConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	role := pgtest.RoleOf(pgtest.UserPool(t, f.pool, f.schema))
	f.sql(fmt.Sprintf("ALTER ROLE %q CONNECTION LIMIT 2", role))
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for range 3 {
				release(t, acquire(t, c, fmt.Sprint("n", i%6)))
			}
		})
	}
	wg.Wait()
	if n := value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", role); n > 2 {
		t.Errorf("%d connections", n)
	}
	f.sql(fmt.Sprintf("ALTER ROLE %q CONNECTION LIMIT -1", role))
}
