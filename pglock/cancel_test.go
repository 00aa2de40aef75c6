package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// impatient returns the context of a caller that leaves soon, long before a statement's bound of 5
// s.
func impatient(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 100*time.Millisecond)
}

// halt halts the server and returns a function that resumes it, as does the end of the test.
func halt(t *testing.T, server *testserver.Server) (resume func()) {
	t.Helper()
	must(t, server.Pause())
	resume = sync.OnceFunc(func() {
		check(t, server.Resume())
	})
	t.Cleanup(resume)
	return resume
}

// soon fails the test if a call took too long after its caller left.
func soon(t *testing.T, what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: the caller, who had 100ms, was kept for %v", what, took)
	}
}

// settled closes the client and waits until the server has finished all its statements.
func (f fixture) settled(c *pglock.Client) {
	f.t.Helper()
	check(f.t, c.Close(f.t.Context()))
	until(f, "the client's connections end", 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%pglock%'")
}

// TestI9_ALoneCallerLeaves: while the server is halted, a caller that sends its own statement
// leaves when its context ends. Its grant is revoked when the server resumes.
func TestI9_ALoneCallerLeaves(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(*pglock.Client, context.Context, string, ...pglock.LeaseOption) (*pglock.Lease, error){
		"TryAcquire": (*pglock.Client).TryAcquire,
		"Acquire":    (*pglock.Client).Acquire,
		"WithWait": func(c *pglock.Client, ctx context.Context, name string, opts ...pglock.LeaseOption) (*pglock.Lease, error) {
			return c.Acquire(context.WithoutCancel(ctx), name, append(opts, pglock.WithWait(100*time.Millisecond))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			version := func() int { return value[int](f, "SELECT version FROM pglock.distributed_locks") }
			const rounds = 4
			granted := 0
			for range rounds {
				c := f.openUnclosed(pglock.WithTTL(time.Hour))
				release(t, try(t, c, "n")) // its row exists, and the statements are prepared
				before := version()
				resume := halt(t, server)
				ctx, cancel := impatient(t)
				began := time.Now()
				_, err := acquire(c, ctx, "n")
				soon(t, name, began)
				cancel()
				want := context.DeadlineExceeded
				if name == "WithWait" {
					want = pglock.ErrTimeout
				}
				fails(t, "told ", err, want, pglock.ErrNotAcquired)
				resume()
				f.settled(c)
				is(f, "the lock is held for an hour by nobody", false, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
				if version() > before { // the request arrived before the cancellation
					granted++
				}
			}
			t.Logf("%d of %d requests were granted after their callers had left", granted, rounds)
		})
	}
}

// TestI9_ALoneReleaserLeaves: the release continues without its caller, and ends when the server
// resumes.
func TestI9_ALoneReleaserLeaves(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	f := on(t, server.URL())
	c := f.openUnclosed(pglock.WithTTL(time.Hour))
	release(t, try(t, c, "n"))
	l := try(t, c, "n")
	resume := halt(t, server)
	ctx, cancel := impatient(t)
	defer cancel()
	began := time.Now()
	err := l.Release(ctx)
	soon(t, "Release", began)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done yet") {
		t.Errorf("told %v", err)
	}
	ends(t, "the lease's own context is done", l.Done())
	resume()
	until(f, "the lock is free", true, "SELECT holder IS NULL FROM pglock.distributed_locks")
	release(t, l) // it has been released
	f.settled(c)
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, testserver.Options{})
			f := on(t, server.URL())
			c := f.openUnclosed(pglock.WithTTL(time.Hour))
			release(t, try(t, c, "free"))
			l := try(t, c, "held")
			resume := halt(t, server)
			told := make(chan error, 1)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				told <- call(t.Context(), c, l)
			}()
			rest(t, 200*time.Millisecond) // it is in progress
			ctx := bounded(t, 300*time.Millisecond)
			closed := make(chan struct{})
			go func() { defer close(closed); _ = c.Close(ctx) }()
			ends(t, "Close", closed)
			ends(t, name, ended)
			fails(t, "told", <-told, pglock.ErrClosed) // its statement would have ended in another way, after 5 s
			resume()
		})
	}
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
	is(f, "control: the late statement wins the token", int64(2), "SELECT token FROM pglock.distributed_locks")
	is(f, "the lock is held after Close", false, "SELECT holder IS NOT NULL FROM pglock.distributed_locks")
}
