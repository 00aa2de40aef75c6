package pglock_test

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// replicated is a primary with a standby whose link can be cut.
type replicated struct {
	fixture
	primary, standby *testserver.Server
	link             *faultproxy.Proxy
}

// newReplicated starts both. With synchronous, the primary waits for the standby.
func newReplicated(t *testing.T, synchronous bool) replicated {
	t.Helper()
	primary := pgtest.Server(t, testserver.Options{})
	f := on(t, primary.URL())
	standby := pgtest.Standby(t, primary)
	r := replicated{f, primary, standby, faultproxy.New(t, primary.Addr())}
	there := r.there()
	way := regexp.MustCompile(`port=\S+`).ReplaceAllString(
		value[string](there, "SHOW primary_conninfo"), "port="+regexp.MustCompile(`\d+$`).FindString(r.link.Addr()))
	there.sql("ALTER SYSTEM SET primary_conninfo = '" + regexp.MustCompile(`'`).ReplaceAllString(way, "''") + "'")
	there.sql("SELECT pg_reload_conf()")
	pgtest.Eventually(t, "the standby follows through the proxy", func() bool {
		return r.link.Stats().Accepted > 0 && value[int](f, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1
	})
	if synchronous {
		f.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
		f.sql("SELECT pg_reload_conf()")
		until(f, "the standby is synchronous", 1, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
	}
	return r
}

// there returns the fixture on the standby.
func (r replicated) there() fixture {
	r.t.Helper()
	return fixture{r.t, pgtest.PoolOn(r.t, r.standby.URL()), r.schema}
}

// interrupt ends every wait for the standby by that function, until the returned function is
// called.
func (r replicated) interrupt(function string) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.pool.Exec(ctx, "SELECT "+function+"(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()")
			rest(r.t, 20*time.Millisecond)
		}
	})
	return func() { cancel(); running.Wait() }
}

// TestP49_AGrantThatNoStandbyHasIsNotReported cuts the standby off and ends the wait for it during
// a grant: by a cancellation, after which the server reports success and a warning, and by the end
// of the connection, after which the request is repeated and finds its own grant.
func TestP49_AGrantThatNoStandbyHasIsNotReported(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, true)
	quiet := pgtest.RoleOf(pgtest.UserPool(t, r.pool, r.schema))
	r.sql(`ALTER ROLE "` + quiet + `" SET client_min_messages = 'error'`) // the warning must arrive all the same
	single := r.openUnclosed()
	many := r.openUnclosed(pglock.WithBatches(64, true))
	for _, c := range []*pglock.Client{single, many} {
		release(t, try(t, c, "old"))
	}
	held := try(t, single, "held")
	type granting func(t *testing.T, ctx context.Context) (*pglock.Lease, error)
	acquiring := func(c *pglock.Client, name string) granting {
		return func(_ *testing.T, ctx context.Context) (*pglock.Lease, error) { return c.Acquire(ctx, name) }
	}
	for name, grant := range map[string]granting{
		"an old name":                         acquiring(single, "old"),
		"a new name":                          acquiring(single, "new"),
		"an old name, the statement for many": acquiring(many, "old"),
		"a new name, the statement for many":  acquiring(many, "new"),
		"handed off": func(t *testing.T, ctx context.Context) (*pglock.Lease, error) {
			t.Helper()
			go func() {
				pgtest.Eventually(t, "it waits", func() bool { return pglock.Waiting(single, "held") == 1 })
				_ = held.Release(ctx)
			}()
			return single.Acquire(ctx, "held")
		},
	} {
		for _, function := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
			if name == "handed off" && function == "pg_terminate_backend" {
				held = acquire(t, single, "held")
			}
			r.link.Cut()
			stop := r.interrupt(function)
			ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
			type result struct {
				lease *pglock.Lease
				err   error
			}
			got := make(chan result, 1)
			go func() {
				l, err := grant(t, ctx)
				got <- result{l, err}
			}()
			select {
			case g := <-got:
				t.Errorf("%s, %s: while no standby had it: %v, %v", name, function, g.lease, g.err)
				stop()
				r.link.Heal()
				if g.err == nil {
					_ = g.lease.Release(ctx)
				}
			case <-time.After(1500 * time.Millisecond):
				stop()
				r.link.Heal()
				g := <-got
				if g.err != nil {
					t.Errorf("%s, %s: with the standby back: %v", name, function, g.err)
					break
				}
				there := value[int64](r.there(), "SELECT coalesce(max(token), 0) FROM pglock.distributed_locks WHERE name = $1", g.lease.Name())
				if there != int64(g.lease.Token()) {
					t.Errorf("%s, %s: granted token %d, the standby has %d", name, function, g.lease.Token(), there)
				}
				release(t, g.lease)
			}
			cancel()
			if name == "a new name" || name == "a new name, the statement for many" {
				r.sql("DELETE FROM pglock.distributed_locks WHERE name = 'new'")
			}
		}
	}
	r.link.Cut()
	stop := r.interrupt("pg_cancel_backend")
	fails(t, "TryAcquire while no standby had it", second(single.TryAcquire(t.Context(), "old")), pglock.ErrUnavailable)
	stop()
	r.link.Heal()
	for _, c := range []*pglock.Client{single, many} {
		check(t, c.Close(t.Context()))
	}
}

// TestP49_ARenewalThatNoStandbyHasExtendsNothing does the same for renewals.
func TestP49_ARenewalThatNoStandbyHasExtendsNothing(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, true)
	c := r.openUnclosed()
	l := try(t, c, "n", pglock.WithTTL(30*time.Second), pglock.WithRenewEvery(50*time.Millisecond))
	r.link.Cut()
	pgtest.Eventually(t, "a renewal waits for the standby", func() bool {
		return value[int](r.fixture, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") > 0
	})
	before := l.Deadline()
	stop := r.interrupt("pg_cancel_backend")
	rest(t, time.Second)
	if after := l.Deadline(); !after.Equal(before) {
		t.Errorf("renewals that no standby has prolonged the lease by %v", after.Sub(before))
	}
	stop()
	r.link.Heal()
	pgtest.Eventually(t, "renewals count again", func() bool { return l.Deadline().After(before) })
	release(t, l)
	check(t, c.Close(t.Context()))
}

// TestI1_P49_NoOverlapAfterAFailover cuts the standby off during a grant, kills the primary and
// promotes the standby. The control uses asynchronous replication: there are two holders until the
// first one's deadline, and the first one's guard fails.
func TestI1_P49_NoOverlapAfterAFailover(t *testing.T) {
	t.Parallel()
	for name, synchronous := range map[string]bool{"synchronous": true, "control": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicated(t, synchronous)
			c := r.openUnclosed()
			release(t, try(t, c, "n"))
			there := r.there()
			pgtest.Eventually(t, "the standby has the row", func() bool {
				return value[bool](there, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' AND holder IS NULL)")
			})
			r.link.Cut()
			stop := r.interrupt("pg_cancel_backend")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			first, err := c.Acquire(ctx, "n", pglock.WithTTL(time.Minute))
			cancel()
			stop()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire: %v", err)
			}
			must(t, r.primary.Stop(testserver.Immediate))
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			must(t, r.standby.Promote(ctx))
			second := try(t, r.there().open(), "n")
			if overlap := first != nil && first.Err() == nil; overlap == synchronous {
				t.Errorf("synchronous: %v, and two hold the lock at once: %v", synchronous, overlap)
			}
			if first != nil {
				tx, err := r.there().pool.Begin(t.Context())
				must(t, err)
				fails(t, "the first holder's guard on the new primary", first.Guard(t.Context(), tx), fencing.ErrStale)
				check(t, tx.Rollback(t.Context()))
			}
			release(t, second)
			ended, end := context.WithCancel(t.Context())
			end()
			_ = c.Close(ended) // its server is gone
		})
	}
}
