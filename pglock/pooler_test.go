package pglock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// pooled returns the fixture as seen through a pooler, with statements sent in that mode.
func (f fixture) pooled(through string, mode pgx.QueryExecMode) fixture {
	f.t.Helper()
	return fixture{f.t, pgtest.PoolOn(f.t, through, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }), f.schema}
}

// pooler starts one in transaction mode, with fewer connections than its users would open.
func pooler(t *testing.T, url string) (through string, modes []pgx.QueryExecMode) {
	t.Helper()
	modes, settings := pgtest.PoolerModes()
	return pgtest.Pooler(t, url, "transaction", append(settings, "default_pool_size = 6", "max_client_conn = 500")...), modes
}

// TestP35_PoolerConformance runs the suite through a pooler in transaction mode, in each query mode of
// pgx that the pooler supports, and in QueryExecModeDescribeExec, which no such pooler supports: clients
// use QueryExecModeExec instead.
func TestP35_PoolerConformance(t *testing.T) {
	t.Parallel()
	through, modes := pooler(t, pgtest.URL(t))
	for name, opts := range map[string][]pglock.Option{
		"polling":                    {pglock.WithPollOnly()},
		"a listener past it":         {pglock.WithListener(pgtest.URL(t))},
		"many together, and past it": {pglock.WithListener(pgtest.URL(t)), pglock.WithBatches(64, true)},
	} {
		modes := modes
		if name == "polling" {
			modes = append(modes[:len(modes):len(modes)], pgx.QueryExecModeDescribeExec)
		}
		for _, mode := range modes {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				conformance.Run(t, func(t *testing.T) func() conformance.Locker {
					t.Helper()
					f := newFixture(t).pooled(through, mode)
					return func() conformance.Locker { return leasesOf(f.open(opts...)) }
				})
			})
		}
	}
}

// TestP35_ConformanceInSessionMode runs the suite through a pooler in session mode, with the listener
// through the pooler too. Short: in two query modes of pgx. Long: in each.
func TestP35_ConformanceInSessionMode(t *testing.T) { //nolint:tparallel // one mode at a time: each client keeps its connections
	t.Parallel()
	url := pgtest.Database(t)
	through := pgtest.Pooler(t, url, "session", "default_pool_size = 80", "max_client_conn = 500")
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
	if os.Getenv("PGLOCK_CHAOS") != "" {
		modes = append(modes, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec)
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := on(t, url).pooled(through, mode)
				return func() conformance.Locker { return leasesOf(f.open()) }
			})
		})
	}
}

// TestP35_ConformanceBehindPgpool runs the suite through pgpool-II in each query mode of pgx, with the
// listener through the pooler too. The schemas have plain names: pgpool-II looks functions up in the
// catalog, does not quote their names, and ends the client's connection if that fails.
func TestP35_ConformanceBehindPgpool(t *testing.T) { //nolint:tparallel // one mode at a time: each client keeps its connections
	t.Parallel()
	url := pgtest.Database(t)
	through := pgtest.Pgpool(t, url)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				direct := fixture{t, pgtest.PoolOn(t, url), "plain_" + strings.ToLower(rand.Text())}
				must(t, migrations.Up(t.Context(), direct.pool, migrations.WithSchema(direct.schema)))
				f := direct.pooled(through, mode)
				return func() conformance.Locker { return leasesOf(f.open()) }
			})
		})
	}
}

// TestP35_APoolerWithoutPreparedStatements: two clients that share a session of a pooler which does not know
// prepared statements prepare the same one. The error names the setting to change.
func TestP35_APoolerWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	if modes, _ := pgtest.PoolerModes(); slices.Contains(modes, pgx.QueryExecModeCacheStatement) {
		t.Skip("this pooler knows prepared statements")
	}
	f := newFixture(t)
	through := f.pooled(pgtest.Pooler(t, pgtest.URL(t), "transaction", "default_pool_size = 1"), pgx.QueryExecModeCacheStatement)
	try(t, through.open(), "a")
	_, err := through.open().TryAcquire(t.Context(), "b")
	if err == nil || !strings.Contains(err.Error(), "42P05") || !strings.Contains(err.Error(), "set default_query_exec_mode=exec") {
		t.Errorf("got %v, want the setting", err)
	}
	exec := f.pooled(pgtest.Pooler(t, pgtest.URL(t), "transaction", "default_pool_size = 1"), pgx.QueryExecModeExec)
	try(t, exec.open(), "c")
	try(t, exec.open(), "d")
}

// TestP35_AListenerPastThePooler wakes a waiter behind a pooler before its next poll.
func TestP35_AListenerPastThePooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := on(t, url)
	through, modes := pooler(t, url)
	asked := &questions{text: direct.named(pglock.PeekSQL)}
	f := fixture{t, pgtest.PoolOn(t, through, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.Tracer = modes[0], asked
	}), direct.schema}
	holder := direct.open(pglock.WithPollOnly(), pglock.WithTTL(time.Hour))
	c := f.open(pglock.WithListener(url))
	for round := range 5 { // a slow machine may be late for one
		if direct.wokenEarly(holder, c, asked, fmt.Sprint("n", round)) {
			return
		}
	}
	t.Error("no notification has woken it")
}

// questions notes when a client last sent a statement, by itself or in a frame.
type questions struct {
	text string
	last atomic.Pointer[time.Time]
}

func (q *questions) note(sql string) {
	if now := time.Now(); sql == q.text {
		q.last.Store(&now)
	}
}

func (q *questions) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	q.note(data.SQL)
	return ctx
}
func (*questions) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (q *questions) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, query := range data.Batch.QueuedQueries {
		q.note(query.SQL)
	}
	return ctx
}
func (*questions) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*questions) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// wokenEarly reports whether a waiter whose pauses have grown to at least a third of a second
// acquires the lock before its next poll, which only a notification makes possible. Another client
// is the holder.
func (f fixture) wokenEarly(holder, waiter *pglock.Client, asked *questions, name string) bool {
	f.t.Helper()
	held := try(f.t, holder, name)
	got := async(f.t, waiter.Lock(name))
	pgtest.Eventually(f.t, "it waits", func() bool { return f.tickets(name) == 1 && pglock.Listening(waiter) })
	rest(f.t, 3*time.Second) // for its pauses to grow
	before := asked.last.Load()
	pgtest.Eventually(f.t, "it polls", func() bool { return asked.last.Load() != before })
	last := *asked.last.Load()
	pgtest.Eventually(f.t, "it has its answer", func() bool { return pglock.HeadWaits(waiter, name) })
	release(f.t, held)
	l := next(f.t, got)
	after := time.Since(last) // not the server's time of the grant, because the wall clock here may be wrong
	f.t.Logf("%s: granted %v after the last question", name, after)
	release(f.t, l)
	return after < 250*time.Millisecond
}

// TestP35_ListeningThroughAPooler: no notification arrives. A client finds that out, so its waiters
// poll as with WithPollOnly. Nothing is left behind.
func TestP35_ListeningThroughAPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := on(t, url)
	through, modes := pooler(t, url)
	const clients, workers, rounds = 2, 2, 2
	for _, mode := range modes {
		f := direct.pooled(through, mode)
		all := []*pglock.Client{direct.openUnclosed()} // one of them bypasses the pooler
		for range clients {
			all = append(all, f.openUnclosed())
		}
		var longest time.Duration
		var wg sync.WaitGroup
		for _, c := range all {
			for range workers {
				wg.Go(func() {
					for range rounds {
						held := acquire(t, c, "released")
						rest(t, 5*time.Millisecond)
						release(t, held)
					}
				})
			}
		}
		wg.Wait()
		// A release alone: only its own poll helps the waiter.
		for range 2 {
			held := try(t, all[0], "n", pglock.WithTTL(time.Hour))
			got := f.waits(all[1], "n")
			rest(t, 2*time.Second) // for its pauses to grow
			release(t, held)
			freed := time.Now()
			release(t, next(t, got))
			longest = max(longest, time.Since(freed)) // usually 1 s
		}
		t.Logf("%v: granted %v after a release, at the longest", mode, longest.Round(time.Millisecond))
		if pglock.Listening(all[1]) {
			t.Error("it believes that it listens")
		}
		for _, c := range all {
			check(t, c.Close(t.Context()))
		}
		if n := value[int](direct, "SELECT count(*) FROM pglock.lock_waiters"); n != 0 {
			t.Errorf("%v: %d are left in the queue", mode, n)
		}
		if n := value[int](direct, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL"); n != 0 {
			t.Errorf("%v: %d locks are left", mode, n)
		}
	}
}
