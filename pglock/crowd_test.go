package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestManyWaiters lets 5,000 goroutines wait for one name in one process, in the long form 100,000:
// with one ticket and few connections. The lock passes among them. Then most leave, while it passes
// on. All that stay acquire the lock.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	waiters, stayers, patience := 5000, 50, 20*time.Second
	if os.Getenv("PGLOCK_CHAOS") != "" {
		waiters, stayers, patience = 100_000, 1000, 5*time.Minute
	}
	f := on(t, pgtest.Database(t))
	c := f.open()
	held := try(t, f.open(), "n")
	leavers, leave := context.WithCancel(t.Context())
	defer leave()
	before, began := inUse(), time.Now()
	var served, stayed atomic.Int32
	var wg sync.WaitGroup
	for i := range waiters {
		ctx, stays := leavers, i%(waiters/stayers) == 0
		if stays {
			ctx = t.Context()
		}
		wg.Go(func() {
			l, err := c.Acquire(ctx, "n")
			switch {
			case err == nil:
				served.Add(1)
				if stays {
					stayed.Add(1)
				}
				release(t, l)
			case !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		})
	}
	pgtest.Eventually(t, patience, "all wait", func() bool {
		return pglock.Waiting(c, "n") == waiters && f.tickets("n") == 1
	})
	t.Logf("%d wait after %v, with %d bytes each", waiters, time.Since(began), (inUse()-before)/waiters)
	if n := value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%'"); n > 6 {
		t.Errorf("%d connections of two clients", n)
	}
	began = time.Now()
	release(t, held)
	pgtest.Eventually(t, patience, "the lock passes", func() bool { return int(served.Load()) >= stayers })
	t.Logf("%d grants while they wait, %v each", served.Load(), time.Since(began)/time.Duration(served.Load()))
	began = time.Now()
	leave()
	wg.Wait()
	t.Logf("all are gone after %v, %d of them with the lock", time.Since(began), served.Load())
	if n := int(stayed.Load()); n != stayers {
		t.Errorf("%d of %d who stayed were served", n, stayers)
	}
	if n := pglock.Waiting(c, "n"); n != 0 {
		t.Errorf("%d still wait", n)
	}
	pgtest.Eventually(t, patience, "no ticket is left", func() bool { return f.tickets("n") == 0 })
}

// inUse returns the bytes of heap and stacks that the process uses.
func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
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
