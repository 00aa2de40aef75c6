package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestEachInABatchGetsItsOwnOptions checks holder, labels and TTL, for new and known locks. Values
// that all of a batch have in common are sent once.
func TestEachInABatchGetsItsOwnOptions(t *testing.T) {
	t.Parallel()
	const calls = 5
	for _, known := range []bool{false, true} {
		for _, alike := range []bool{false, true} {
			t.Run(fmt.Sprintf("known %v, alike %v", known, alike), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := f.open(pglock.WithMaxConns(2))
				for i := 0; known && i < calls; i++ {
					release(t, try(t, c, fmt.Sprint("n", i)))
				}
				resume := f.occupy(c)
				var wg sync.WaitGroup
				for i := range calls {
					as := i
					if alike {
						as = 1
					}
					holder, of, ttl := fmt.Sprint("holder ", as), fmt.Sprint(as), time.Duration(1+as)*time.Minute
					wg.Go(func() {
						l := try(t, c, fmt.Sprint("n", i), pglock.WithHolder(holder),
							pglock.WithLabels(map[string]string{"of": of}), pglock.WithTTL(ttl))
						got, err := c.Get(t.Context(), l.Name())
						if err != nil || got.Holder != holder || got.Labels["of"] != of || got.Remaining.Round(time.Minute) != ttl {
							t.Errorf("call %d was granted as %+v, %v", i, got, err)
						}
						release(t, l)
					})
				}
				gathered(t, c, calls)
				resume()
				wg.Wait()
			})
		}
	}
}

// TestCallsThatGatherBehindAnInlineCallAreSent: a caller that sends its own statement counts as the
// only worker here. When it is done, the calls that gathered are sent, without a further call.
func TestCallsThatGatherBehindAnInlineCallAreSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2))
	resume := f.stall()
	first, second := make(chan *pglock.Lease, 1), make(chan *pglock.Lease, 1)
	go func() {
		l, err := c.TryAcquire(context.WithoutCancel(t.Context()), "in the way", pglock.WithHolder("stalled"))
		check(t, err)
		first <- l
	}()
	f.awaitStalled()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l, err := c.TryAcquire(t.Context(), "n")
		check(t, err)
		second <- l
	}()
	gathered(t, c, 1)
	resume()
	ends(t, "what gathered is answered", answered)
	for _, l := range []*pglock.Lease{<-first, <-second} {
		if l != nil {
			release(t, l)
		}
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

// blocked reports whether a first grant waits in block.
func (f fixture) blocked() bool {
	return value[bool](f, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND (classid::bigint << 32) + objid::bigint = hashtextextended($1, 43))`, f.schema)
}

// TestP44_ABatchThatFailsHalfWayKeepsItsGrants: a batch may need several statements, each of which
// commits by itself. When the network breaks after the first one, the callers that it has granted
// have their leases, and the others get an error.
func TestP44_ABatchThatFailsHalfWayKeepsItsGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.openUnclosed(pglock.WithMaxConns(2), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
	release(t, try(t, c, "known")) // its row exists: the fast path grants it
	goOn := f.occupy(c)
	resume := f.block("new")
	type result struct {
		lease *pglock.Lease
		err   error
	}
	results := map[string]chan result{"known": make(chan result, 1), "new": make(chan result, 1)}
	for name, got := range results {
		go func() {
			l, err := c.TryAcquire(t.Context(), name)
			got <- result{l, err}
		}()
	}
	gathered(t, c, 2)
	goOn()
	pgtest.Eventually(t, "the second statement is in progress", f.blocked)
	proxy.Refuse(true)
	proxy.Sever()
	resume()
	if got := <-results["known"]; got.err != nil {
		t.Errorf("granted by the first statement, the second fails: %v; and the lock is held for %v by nobody",
			got.err, value[time.Duration](f, "SELECT expires_at - clock_timestamp() FROM pglock.distributed_locks WHERE name = 'known'"))
	}
	if got := <-results["new"]; !errors.Is(got.err, pglock.ErrUnavailable) {
		t.Errorf("without an answer: %v", got.err)
	}
	proxy.Refuse(false)
	check(t, c.Close(context.WithoutCancel(t.Context())))
	until(f, "no lock is left", 0, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL")
}
