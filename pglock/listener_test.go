package pglock_test

import (
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// listeners is an SQL condition for the listening connections of a fixture's clients.
const listeners = "query LIKE 'LISTEN %' AND datname = current_database()"

// TestP19_AReleaseWakesTheNext: a waiter acquires a long-lived lock at once when it is released.
func TestP19_AReleaseWakesTheNext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{
		"notified": nil, "polling": {pglock.WithPollOnly()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := on(t, pgtest.Database(t))
			held := try(t, f.open(), "n", pglock.WithTTL(time.Hour))
			c := f.open(opts...)
			got := make(chan *pglock.Lease)
			go func() { got <- acquire(t, c, "n") }()
			pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("n") == 1 })
			want := 1
			if name == "polling" {
				want = 0
			}
			pgtest.Eventually(t, 10*time.Second, "it listens, or not", func() bool {
				return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE "+listeners) == want
			})
			release(t, held)
			freed := time.Now()
			release(t, <-got)
			if took := time.Since(freed); took > 3*time.Second {
				t.Errorf("the next was granted after %v", took)
			}
		})
	}
}

// TestI10_P17_ANotificationThatNeverComes: the row is the truth.
func TestI10_P17_ANotificationThatNeverComes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.openUnclosed()
	try(t, holder, "n", pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
	c := f.open()
	got := make(chan *pglock.Lease)
	go func() { got <- acquire(t, c, "n") }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("n") == 1 })
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp()")
	freed := time.Now()
	l := <-got
	if took := time.Since(freed); took > 3*time.Second { // usually 1 s
		t.Errorf("granted %v after a release that notified nobody", took)
	}
	release(t, l)
	if err := holder.Close(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the holder, whose lock was freed behind its back: %v", err)
	}
}

// TestChannelsAreTheClientsOwn checks the channel names.
func TestChannelsAreTheClientsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "n")
	var wg sync.WaitGroup
	for i := range 3 {
		c := f.open()
		wg.Go(func() { release(t, acquire(t, c, "n")) })
		pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("n") == i+1 })
	}
	rows, err := f.pool.Query(t.Context(), f.named("SELECT client FROM pglock.lock_waiters"))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	seen := map[string]bool{}
	for rows.Next() {
		var channel string
		if err := rows.Scan(&channel); err != nil {
			t.Fatal(err)
		}
		if len(channel) > 63 || !regexp.MustCompile(`^pglock_[a-z0-9]{20,}$`).MatchString(channel) || seen[channel] {
			t.Errorf("channel %q", channel)
		}
		seen[channel] = true
	}
	if err := rows.Err(); err != nil || len(seen) != 3 {
		t.Errorf("%d channels, %v", len(seen), err)
	}
	release(t, held)
	wg.Wait()
}

// TestTheListenerIsKilled kills it again and again, while workers of several clients use one lock.
func TestTheListenerIsKilled(t *testing.T) {
	t.Parallel()
	const clients, workers, rounds = 3, 4, 15
	f := on(t, pgtest.Database(t))
	stop := make(chan struct{})
	killed := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-time.After(60 * time.Millisecond):
				n += value[int](f, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "+listeners)
			case <-stop:
				killed <- n
				return
			}
		}
	}()
	var longest time.Duration
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range clients {
		c := f.open()
		for range workers {
			wg.Go(func() {
				for range rounds {
					began := time.Now()
					l := acquire(t, c, "n")
					mu.Lock()
					longest = max(longest, time.Since(began))
					mu.Unlock()
					rest(t, 2*time.Millisecond)
					release(t, l)
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	if n := <-killed; n == 0 {
		t.Error("no listener was killed")
	}
	if longest > 20*time.Second {
		t.Errorf("somebody waited for %v", longest)
	}
}

// TestP24_AListenerThatDiedHalfOpen: nothing arrives any more, without an error.
func TestP24_AListenerThatDiedHalfOpen(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	held := try(t, f.open(), "n")
	c := f.open(pglock.WithListener(proxy.URL(pgtest.URL(t))))
	got := make(chan *pglock.Lease)
	go func() { got <- acquire(t, c, "n") }()
	pgtest.Eventually(t, 10*time.Second, "it listens", func() bool { return pglock.Listening(c) })
	proxy.DropReplies()
	release(t, held)
	freed := time.Now()
	release(t, <-got)
	if took := time.Since(freed); took > 5*time.Second { // usually 1 s
		t.Errorf("granted after %v", took)
	}
	proxy.Heal()
	proxy.Sever()
}

// TestAListenerOfItsOwn: WithListener's connection string counts, even if it is wrong.
func TestAListenerOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "n")
	deaf := f.open(pglock.WithListener("host=127.0.0.1 port=1 connect_timeout=1"))
	got := make(chan *pglock.Lease)
	go func() { got <- acquire(t, deaf, "n") }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("n") == 1 })
	release(t, held)
	release(t, <-got) // it polls
	if pglock.Listening(deaf) {
		t.Error("it says that it listens")
	}
	for _, opts := range [][]pglock.Option{
		{pglock.WithListener("port=nonsense")},
		{pglock.WithPollOnly(), pglock.WithListener("host=127.0.0.1")},
	} {
		_, err := pglock.Open(t.Context(), f.pool, opts...)
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%v", err)
		}
	}
}

// TestAServerCrashUnderWaiters kills the server, which empties the queue, and starts it again.
func TestAServerCrashUnderWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 100
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	all := []*pglock.Client{f.openUnclosed(), f.openUnclosed()}
	held := try(t, f.open(), "n", pglock.WithTTL(3*time.Second), pglock.WithRenewEvery(0))
	var wg sync.WaitGroup
	for _, c := range all {
		for range waiters {
			wg.Go(func() { release(t, acquire(t, c, "n")) })
		}
	}
	pgtest.Eventually(t, 10*time.Second, "all wait", func() bool {
		return pglock.Waiting(all[0], "n")+pglock.Waiting(all[1], "n") == 2*waiters && f.tickets("n") == 2
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if held.Err() == nil {
		t.Error("the first lease did not end")
	}
	for _, c := range all {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
