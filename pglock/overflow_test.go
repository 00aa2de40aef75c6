package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// longQueue is more than the waiters that listen.
const longQueue = 24

// TestALongQueue: only the first of many waiters listen. The others are shown behind
// them, and are granted the lock although no release notifies them. The first ones keep their order.
func TestALongQueue(t *testing.T) {
	t.Parallel()
	f := on(t, pgtest.Database(t))
	const first = 16
	held := try(t, f.open(), "n")
	var mu sync.Mutex // guards served
	var served []int
	var all sync.WaitGroup
	waiters := make([]*pglock.Client, longQueue)
	for i := range waiters {
		c := f.open()
		waiters[i] = c
		all.Go(func() {
			l := acquire(t, c, "n")
			mu.Lock()
			served = append(served, i)
			mu.Unlock()
			release(t, l)
		})
		pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	}
	pgtest.Eventually(t, "the first of them listen", func() bool {
		return len(slices.DeleteFunc(slices.Clone(waiters), func(c *pglock.Client) bool { return !pglock.Listening(c) })) == first
	})
	k := get(t, f.open(), "n")
	tickets := make([]int64, len(k.Waiters))
	for i, w := range k.Waiters {
		tickets[i] = w.Ticket
	}
	if len(tickets) != longQueue || !slices.IsSorted(tickets[:first]) || tickets[0] == 0 || slices.Max(append(tickets[first:], 0)) != 0 {
		t.Errorf("the waiters have the tickets %v", tickets)
	}
	is(f, "waiters in line", longQueue-first, "SELECT count(*) FROM pglock.locks_waiting WHERE ticket IS NULL")
	freed := time.Now()
	release(t, held)
	all.Wait()
	t.Logf("served in %v: %v", time.Since(freed), served)
	if !slices.IsSorted(served[:first]) {
		t.Errorf("served in the order %v", served)
	}
	atMost(t, 2*timing.RefreshEvery, "all of them", freed)
}

// TestTakeoverInAFleet: a holder dies, and with it half of those that wait, the first ones among them. The
// next grant is half a second after the end of the lease at the latest, in which the tickets of the dead
// end too. On a slow machine it may take longer, by twenty times the slowest of a few pairs of acquire and release.
func TestTakeoverInAFleet(t *testing.T) {
	t.Parallel()
	clients := 20
	if os.Getenv("PGLOCK_CHAOS") != "" {
		clients = 250
	}
	f := on(t, pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_connections": "1500"}}).URL())
	dies := func(name string) {
		f.sql(`INSERT INTO pglock.lock_waiters (name, client, expires_at)
			VALUES ('n', $1, clock_timestamp() + make_interval(secs => $2::float8 - $3::float8 * random()))`,
			name, timing.TicketTTL.Seconds(), timing.RefreshEvery.Seconds())
	}
	holder := f.open()
	waiters := make([]*pglock.Client, clients)
	for i := range waiters {
		waiters[i] = f.open()
	}
	attempt := 0
	inTime(t, 500*time.Millisecond, "the grant after the end of the lease", func() time.Duration {
		attempt++
		held := held(t, holder.Lock("n"), pglock.WithTTL(timing.DefaultTTL), pglock.WithRenewEvery(0))
		for i := range 20 {
			dies(fmt.Sprint("first ", attempt, i))
		}
		granted := make(chan *pglock.Lease, clients)
		for i, c := range waiters {
			go func() {
				if l, err := c.Acquire(context.Background(), "n"); err == nil {
					granted <- l
				}
			}()
			dies(fmt.Sprint("dead ", attempt, i))
		}
		pgtest.Eventually(t, "all wait", func() bool {
			return !slices.ContainsFunc(waiters, func(c *pglock.Client) bool { return !pglock.HeadWaits(c, "n") })
		})
		check(t, held.Extend(t.Context(), timing.DefaultTTL)) // it dies after that, as its waiters do
		expiry := f.stored("n")
		ends(t, "the lease ends", held.Done())
		l := next(t, granted)
		late := value[time.Duration](f, "SELECT acquired_at - $1 FROM pglock.distributed_locks WHERE name = 'n'", expiry)
		var slowest time.Duration
		for range 10 {
			began := time.Now()
			release(t, try(t, holder, "another"))
			slowest = max(slowest, time.Since(began))
		}
		t.Logf("granted %v after the end of the lease; a pair took up to %v", late, slowest)
		if late < 0 {
			t.Fatal("granted before the end of the lease")
		}
		release(t, l)
		for range clients - 1 {
			release(t, next(t, granted))
		}
		return late - 20*slowest
	})
}

// TestARestartUnderAFleet: a server restarts while many clients wait. All come back, and each is granted the
// lock.
func TestARestartUnderAFleet(t *testing.T) {
	t.Parallel()
	clients := 80
	if os.Getenv("PGLOCK_CHAOS") != "" {
		clients = 500
	}
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_connections": "2500"}})
	f := on(t, server.URL())
	held := try(t, f.open(), "n", pglock.WithTTL(time.Hour))
	granted := make(chan *pglock.Lease, clients)
	for range clients {
		c := f.open()
		go func() {
			l, err := c.Acquire(context.Background(), "n")
			switch {
			case err == nil:
				granted <- l
			case !errors.Is(err, pglock.ErrClosed): // the end of a test that has failed
				t.Errorf("Acquire: %v", err)
			}
		}()
	}
	until(f, "all wait", clients, "SELECT count(*) FROM pglock.lock_waiters")
	must(t, server.Stop(testserver.Fast))
	must(t, server.Start())
	f.pool.Reset()
	pgtest.Eventually(t, "all are back", func() bool {
		const back = "SELECT count(*) FROM pglock.lock_waiters WHERE expires_at - $1::interval > pg_postmaster_start_time()"
		return value[int](f, back, timing.TicketTTL) >= clients
	})
	check(t, held.Extend(t.Context(), time.Hour))
	release(t, held)
	for range clients {
		release(t, next(t, granted))
	}
}
