package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestP43_AFrozenAddressDelaysNothingAfterwards makes the new connections of a busy client hang,
// and then lets new ones through again. The hanging ones hang forever. The client works again
// within one connect time-out, and a long lease survives, since renewals find a connection too.
func TestP43_AFrozenAddressDelaysNothingAfterwards(t *testing.T) {
	t.Parallel()
	const leases, frozen = 40, 8 * time.Second
	var stuck atomic.Bool
	hang := func(ctx context.Context) error {
		if stuck.Load() {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	for name, tc := range map[string]struct {
		hooks func(c *pgxpool.Config)
		set   func(proxy *faultproxy.Proxy, frozen bool)
	}{
		"the address is frozen": {
			func(*pgxpool.Config) {},
			(*faultproxy.Proxy).Freeze,
		},
		"the server never answers": { // the open ones are reset
			func(*pgxpool.Config) {},
			func(proxy *faultproxy.Proxy, frozen bool) {
				proxy.Freeze(frozen)
				if frozen {
					proxy.Sever()
				}
			},
		},
		"hooks hang": {
			func(c *pgxpool.Config) {
				c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { return hang(ctx) }
				c.AfterConnect = func(ctx context.Context, _ *pgx.Conn) error { return hang(ctx) }
			},
			func(proxy *faultproxy.Proxy, frozen bool) {
				stuck.Store(frozen)
				if frozen {
					proxy.Sever()
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			through := fixture{t, pgtest.PoolOn(t, proxy.URL(pgtest.URL(t)), tc.hooks), f.schema}
			c := through.open(pglock.WithMaxConns(30))
			long := try(t, c, "long", pglock.WithTTL(30*time.Second), pglock.WithRenewEvery(5*time.Second))
			held := many(t, c, leases, pglock.WithRenewEvery(0))
			tc.set(proxy, true)
			var wg sync.WaitGroup
			for _, l := range held { // needs connections
				wg.Go(func() { _ = l.Release(t.Context()) })
			}
			rest(t, frozen)
			version := value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'long'")
			tc.set(proxy, false)
			took := usable(t, c, "other")
			t.Logf("usable %v after an outage of %v", took.Round(time.Millisecond), frozen)
			if took > 9*time.Second { // 5 s, and what the machine takes
				t.Errorf("after an outage of %v the client was not usable for %v", frozen, took)
			}
			pgtest.Eventually(t, "the long lease is renewed", func() bool {
				return value[int64](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'long'") > version
			})
			wg.Wait()
			release(t, long)
			if open := proxy.Stats().Accepted; open > 150 {
				t.Errorf("%d connections were made", open)
			}
		})
	}
}

// usable returns how long it takes until the client acquires a lock.
func usable(t *testing.T, c *pglock.Client, name string) time.Duration {
	t.Helper()
	ctx := bounded(t, pgtest.Patience)
	began := time.Now()
	l, err := c.Acquire(ctx, name)
	if err != nil {
		t.Errorf("the client is not usable: %v", err)
		return time.Since(began)
	}
	took := time.Since(began)
	release(t, l)
	return took
}

// TestForgottenConnectionsCostOneTimeout: a firewall has dropped the idle connections of a healthy
// server. Only one of them costs a time-out.
func TestForgottenConnectionsCostOneTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithMaxConns(9))
	l := try(t, c, "held", pglock.WithTTL(15*time.Second), pglock.WithRenewEvery(6*time.Second))
	proxy.Delay(100 * time.Millisecond) // so that they overlap
	var wg sync.WaitGroup
	for range 8 { // fills the pool
		wg.Go(func() {
			if _, err := c.Get(t.Context(), "held"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	proxy.Delay(0)
	pgtest.Eventually(t, "there are connections to forget", func() bool { return proxy.Stats().Open >= 8 })
	proxy.Freeze(true)
	proxy.Freeze(false)
	if took := usable(t, c, "n"); took > 9*time.Second { // 5 s, and what the machine takes
		t.Errorf("usable after %v", took)
	}
	began := time.Now()
	for range 8 {
		if _, err := c.Get(t.Context(), "held"); err != nil {
			t.Error(err)
		}
	}
	atMost(t, 4*time.Second, "eight more calls", began)
	rest(t, 12*time.Second-time.Since(began))
	check(t, l.Err())
	release(t, l)
}

// TestAFrozenFirstHostKeepsNobodyFromTheSecond: the connection string names two hosts, as for a
// failover. The first one is a black hole. Calls and the listener reach the second one.
func TestAFrozenFirstHostKeepsNobodyFromTheSecond(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	second := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	both := strings.Replace(first.URL(pgtest.URL(t)), first.Addr(), first.Addr()+","+second.Addr(), 1)
	c := f.through(both).open()
	other := f.open()
	l := try(t, c, "held", pglock.WithTTL(20*time.Second))
	first.Freeze(true)
	first.Sever()
	if took := usable(t, c, "n"); took > 12*time.Second {
		t.Errorf("usable after %v", took)
	}
	held := try(t, other, "waited for")
	defer first.Freeze(false) // for the cleanup
	got := f.waits(c, "waited for")
	pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(c) })
	release(t, held)
	release(t, next(t, got))
	check(t, l.Err())
	release(t, l)
}

// TestADeadConnectionLosesNoShortLease: a firewall drops all connections again and again. The next
// renewal hangs on one of them, and is repeated on another. A laden machine gets twice the time, in
// which a statement's own bound would still cost the lease.
func TestADeadConnectionLosesNoShortLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lost := func(ttl time.Duration) (err error) {
		proxy, far := f.proxied()
		c := far.open(pglock.WithTTL(ttl))
		all := many(t, c, 20)
		for range 4 {
			proxy.Freeze(true)
			proxy.Freeze(false)
			rest(t, ttl*2/3)
		}
		for _, l := range all {
			err = errors.Join(err, l.Err(), l.Release(t.Context()))
		}
		return err
	}
	const ttl = 3 * time.Second
	err := lost(ttl)
	if err != nil {
		t.Log(err)
		until(f, "what it left has expired", 0, "SELECT count(*) FROM pglock.distributed_locks WHERE expires_at > clock_timestamp()")
		err = lost(2 * ttl)
	}
	check(t, err)
}

// TestATimeoutClosesNoHealthyConnection: a statement times out because the server is slow with it.
// The connections that answer are used again.
func TestATimeoutClosesNoHealthyConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithMaxConns(6), pglock.WithPollOnly())
	release(t, try(t, c, "n"))
	overlap := func() {
		t.Helper()
		proxy.Delay(100 * time.Millisecond)
		var wg sync.WaitGroup
		for range 5 { // one on each connection
			wg.Go(func() {
				if _, err := c.Get(t.Context(), "n"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		proxy.Delay(0)
	}
	overlap()
	overlap() // includes unused dials
	before := proxy.Stats().Accepted
	resume := f.block("a new name")
	ctx := bounded(t, 6*time.Second)
	if _, err := c.Acquire(ctx, "a new name"); err == nil { // until the statement's bound
		t.Error("a grant that is blocked")
	}
	resume()
	overlap()
	if n := proxy.Stats().Accepted - before; n > 4 { // two were cut off; a cancel request is a connection too
		t.Errorf("%d connections were made after a time-out", n)
	}
}

// block makes first grants of the name wait inside the statement until the returned function is
// called.
func (f fixture) block(name string) (resume func()) {
	f.t.Helper()
	f.sql(`CREATE FUNCTION pglock.block() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA, 43)); RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER block BEFORE INSERT ON pglock.distributed_locks FOR EACH ROW WHEN (NEW.name = '` + name + `') EXECUTE FUNCTION pglock.block()`)
	tx := begin(f.t, f)
	resume = func() { _ = tx.Rollback(context.Background()) }
	f.t.Cleanup(resume)
	if _, err := tx.Exec(f.t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended($1, 43))`, f.schema); err != nil {
		f.t.Fatal(err)
	}
	return resume
}
