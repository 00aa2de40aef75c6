package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// TestP19_P24_I10_P17_AReleaseWakesTheNext: a waiter acquires a long-lived lock soon when it is released,
// also if no notification comes, because its listener died, half-open or not, does not connect, or does
// not exist, or because the release notified nobody: the row is the truth.
func TestP19_P24_I10_P17_AReleaseWakesTheNext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		listener string // of the waiter, if it is not that of the pool
		polls    bool   // without a listener
		silent   bool   // the row is freed behind the holder's back
		killed   bool   // the server ends the listener's session
	}{
		"notified":             {},
		"polling":              {polls: true},
		"no notification":      {silent: true},
		"half-open listener":   {listener: "proxy"},
		"killed listener":      {killed: true},
		"unreachable listener": {listener: "host=127.0.0.1 port=1 connect_timeout=1"},
		"listener of a pool":   {listener: "pool"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := on(t, pgtest.Database(t))
			holder := f.openUnclosed()
			held := try(t, holder, "n", pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			var opts []pglock.Option
			switch {
			case tc.listener == "proxy":
				opts = append(opts, pglock.WithListener(proxy.URL(f.pool.Config().ConnString())))
			case tc.listener == "pool":
				opts = append(opts, pglock.WithListener(f.pool.Config().ConnString()+"&pool_max_conns=3&pool_health_check_period=1m"))
			case tc.listener != "":
				opts = append(opts, pglock.WithListener(tc.listener))
			case tc.polls:
				opts = append(opts, pglock.WithPollOnly())
			}
			c := f.open(opts...)
			got := f.waits(c, "n")
			listens := !tc.polls && (tc.listener == "" || tc.listener == "proxy" || tc.listener == "pool")
			pgtest.Eventually(t, "it listens, or not", func() bool { return pglock.Listening(c) == listens })
			if tc.listener == "proxy" {
				proxy.DropReplies()
			}
			if tc.killed {
				is(f, "control: listeners", 1, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE query LIKE 'LISTEN %' AND datname = current_database()`)
			}
			if tc.silent {
				f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp()")
			} else {
				release(t, held)
			}
			freed := time.Now()
			release(t, next(t, got))
			atMost(t, 5*time.Second, "the next grant", freed) // usually 1 s without a notification
			if err := holder.Close(t.Context()); tc.silent != errors.Is(err, pglock.ErrLost) {
				t.Errorf("the holder is told %v", err)
			}
			proxy.Heal()
			proxy.Sever()
		})
	}
	for _, opts := range [][]pglock.Option{
		{pglock.WithListener("port=nonsense")}, {pglock.WithPollOnly(), pglock.WithListener("host=127.0.0.1")},
	} {
		_, err := pglock.Open(t.Context(), pgtest.Pool(t), opts...)
		fails(t, "Open", err, pglock.ErrInvalidOption)
	}
}

// TestListenersShareTheirStatements: however many clients listen, pg_stat_statements has as many entries as
// for one, so a fleet of short-lived commands does not push out the statements of others.
func TestListenersShareTheirStatements(t *testing.T) {
	t.Parallel()
	f := on(t, pgtest.Server(t, testserver.Options{Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"}}).URL())
	f.sql("CREATE EXTENSION pg_stat_statements")
	try(t, f.open(), "n")
	entries := func() int {
		return value[int](f, "SELECT count(*) FROM pg_stat_statements WHERE query ~ '^(LISTEN|DO) ' OR query LIKE '%.channels%' AND query NOT LIKE '%pg_stat_statements%'")
	}
	var first int
	for i := range 4 {
		c := f.open()
		ctx, giveUp := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := c.Acquire(ctx, "n"); err == nil {
				t.Error("granted twice")
			}
		})
		pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(c) })
		giveUp()
		waiting.Wait()
		if i == 0 {
			first = entries()
		}
	}
	if n := entries(); n != first || n == 0 {
		t.Errorf("%d entries for one client that listens, %d for four", first, n)
	}
}
