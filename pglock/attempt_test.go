package pglock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// TestI9_ALoneCallerLeaves: while the server does not answer, a caller that sends its own statement
// leaves when its context ends. If the statement has arrived, its grant is revoked when the server
// answers again.
func TestI9_ALoneCallerLeaves(t *testing.T) {
	t.Parallel()
	const patience = 100 * time.Millisecond
	type acquire = func(c *pglock.Client, ctx context.Context, opts ...pglock.LeaseOption) error
	for name, tc := range map[string]struct {
		call acquire
		most time.Duration
		want error
	}{
		"TryAcquire": {func(c *pglock.Client, ctx context.Context, _ ...pglock.LeaseOption) error {
			return second(c.TryAcquire(ctx, "n"))
		}, patience, context.DeadlineExceeded},
		"Acquire": {func(c *pglock.Client, ctx context.Context, _ ...pglock.LeaseOption) error {
			return second(c.Acquire(ctx, "n"))
		}, patience, context.DeadlineExceeded},
		"WithWait": {func(c *pglock.Client, ctx context.Context, _ ...pglock.LeaseOption) error {
			return second(c.Acquire(context.WithoutCancel(ctx), "n", pglock.WithWait(patience)))
		}, timing.FirstAttempt, pglock.ErrTimeout},
	} {
		for what, fault := range map[string]func(*network){"arrives": (*network).HoldReplies, "does not arrive": (*network).Cut} {
			bubbles(t, name+", it "+what, func(t *testing.T, f fake) {
				proxy, far := f.proxied()
				c := far.open(pglock.WithTTL(time.Hour))
				release(t, try(t, c, "n")) // its row exists
				before := f.row("n").Token
				fault(proxy)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				fails(t, "told", tc.call(c, ctx), tc.want, pglock.ErrNotAcquired)
				atMost(t, tc.most+timing.CancelGrace, name, began)
				if granted := f.row("n").Token > before; granted != (what == "arrives") { // perhaps it is revoked by now
					t.Errorf("control: granted: %v", granted)
				}
				proxy.Heal()
				rest(t, timing.StatementBound)
				f.empty("n")
			})
		}
	}
}

// TestCloseEndsALoneCallersCall: the end of Close's context ends a statement that a caller has
// sent.
func TestCloseEndsALoneCallersCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *pglock.Client, *pglock.Lease) error{
		"TryAcquire": func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error {
			return second(c.TryAcquire(ctx, "free"))
		},
		"Acquire": func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error {
			return second(c.Acquire(ctx, "free"))
		},
		"Release": func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) },
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			proxy, far := f.proxied()
			c := far.openUnclosed(pglock.WithTTL(time.Hour))
			l := try(t, c, "held")
			proxy.Cut()
			told := make(chan error, 1)
			go func() { told <- call(t.Context(), c, l) }()
			synctest.Wait()
			began := time.Now()
			_ = c.Close(bounded(t, 300*time.Millisecond))
			fails(t, "told", <-told, pglock.ErrClosed) // its statement would have ended in another way, after 5 s
			atMost(t, 300*time.Millisecond, "both calls", began)
		})
	}
}

// TestARecognizedGrantIsRenewedInTime: the answer to an acquire is lost, and the next attempt finds the
// grant when less of its TTL is left than the renewal interval. It is renewed at once. The grant is made
// older, as if that attempt had come late.
func TestARecognizedGrantIsRenewedInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		release(t, acquire(t, c, "n"))
		proxy.DropReplies()
		got := f.waits(c.Lock("n"), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(40*time.Minute))
		f.Advance(45 * time.Minute)
		proxy.Heal()
		proxy.Sever()
		l := next(t, got)
		synctest.Wait()
		if left := f.left("n"); left < 50*time.Minute {
			t.Errorf("the server keeps the lock for %v", left)
		}
		check(t, l.Err())
		release(t, l)
	})
}

// TestAGrantThatArrivesTooLateIsNotReturned: its TTL has passed before its answer is there.
func TestAGrantThatArrivesTooLateIsNotReturned(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open(pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
		release(t, try(t, c, "n")) // opens a connection and prepares its statements
		proxy.HoldReplies()
		result := make(chan error, 1)
		go func() { result <- second(c.TryAcquire(t.Context(), "n")) }()
		rest(t, time.Second) // the grant expires
		proxy.Heal()
		fails(t, "a late grant", <-result, pglock.ErrLateGrant)
		synctest.Wait()
		f.empty("n") // it is revoked
	})
}

// TestI9_AGrantThatCanNotBeCanceled: a transaction that commits ignores cancellation, however long
// its disk or its standby takes. A caller that leaves meanwhile leaves nothing behind, even if the
// commit takes longer than the client waits for any answer (5 s), so that it looks for the grant
// too early.
func TestI9_AGrantThatCanNotBeCanceled(t *testing.T) {
	t.Parallel()
	for _, seconds := range []int{1, 6} {
		t.Run(fmt.Sprint(seconds), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open(pglock.WithTTL(time.Hour))
			release(t, try(t, c, "n"))
			// For one request to cancel, the server sends two signals. If the first one ends the long sleep, the
			// second one may arrive during the short sleep.
			f.sql(fmt.Sprintf(`CREATE FUNCTION pglock.commit_slowly() RETURNS trigger LANGUAGE plpgsql AS $$
			       DECLARE
			           done timestamptz := clock_timestamp() + interval '%d s';
			       BEGIN
			           WHILE NEW.holder = 'slow' AND clock_timestamp() < done LOOP
			               BEGIN
			                   BEGIN PERFORM pg_sleep_until(done); EXCEPTION WHEN query_canceled THEN NULL; END;
			                   PERFORM pg_sleep(0.1);
			               EXCEPTION WHEN query_canceled THEN NULL;
			               END;
			           END LOOP;
			           RETURN NULL;
			       END $$`, seconds))
			f.sql(`CREATE TRIGGER slow AFTER UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.commit_slowly()`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			told := make(chan error, 1)
			go func() { _, err := c.TryAcquire(ctx, "n", pglock.WithHolder("slow")); told <- err }()
			pgtest.Eventually(t, "the grant is on its way", func() bool {
				return value[bool](f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND position($1 IN query) > 0)",
					f.named("pglock.distributed_locks"))
			})
			cancel()
			fails(t, "told", <-told, context.Canceled)
			pgtest.Eventually(t, "the grant is made", func() bool {
				return value[int64](f, "SELECT token FROM pglock.distributed_locks") > 1
			})
			until(f, "and revoked", true, "SELECT holder IS NULL FROM pglock.distributed_locks")
		})
	}
}

// TestI9_CloseRevokesAGrantThatIsStillToCome: the acquire statement of a caller that has left reaches
// the server after the first attempt to revoke its grant, and while the client closes.
func TestI9_CloseRevokesAGrantThatIsStillToCome(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	var armed atomic.Bool
	caught, gate, revoking := make(chan struct{}), make(chan struct{}), make(chan struct{}, 100)
	proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
		switch {
		case strings.Contains(r.SQL, "next_fencing_token") && armed.CompareAndSwap(true, false):
			close(caught)
			<-gate
		case strings.Contains(r.SQL, "l.request = $2"):
			revoking <- struct{}{}
		}
		return faultproxy.Pass
	})
	c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithTTL(time.Hour))
	release(t, try(t, c, "n"))
	release(t, try(t, c, "n")) // the client expects names that have rows now
	armed.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := leaving(ctx, c.Lock("n"))
	ends(t, "the statement is on its way", caught)
	cancel()
	fails(t, "told", <-told, context.Canceled)
	select {
	case <-revoking:
	case <-time.After(pgtest.Patience):
		t.Fatal("no attempt to revoke")
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close(t.Context()) }()
	rest(t, 100*time.Millisecond) // the first attempt to revoke has ended
	close(gate)
	check(t, <-closed)
	is(f, "control: the late statement wins the token", int64(3), "SELECT token FROM pglock.distributed_locks")
	is(f, "the lock is held after Close", false, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
}
