package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

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
			pgtest.Eventually(t, 20*time.Second, "the grant is on its way", func() bool {
				return value[bool](f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND position($1 IN query) > 0)",
					f.named("pglock.distributed_locks"))
			})
			cancel()
			if err := <-told; !errors.Is(err, context.Canceled) {
				t.Errorf("told %v", err)
			}
			pgtest.Eventually(t, 20*time.Second, "the grant is made", func() bool {
				return value[int64](f, "SELECT token FROM pglock.distributed_locks") > 1
			})
			pgtest.Eventually(t, 20*time.Second, "and revoked", func() bool {
				return value[bool](f, "SELECT holder IS NULL FROM pglock.distributed_locks")
			})
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
	told := make(chan error, 1)
	go func() { _, err := c.Acquire(ctx, "n"); told <- err }()
	within(t, 20*time.Second, "the statement is on its way", caught)
	cancel()
	if err := <-told; !errors.Is(err, context.Canceled) {
		t.Errorf("told %v", err)
	}
	select {
	case <-revoking:
	case <-time.After(20 * time.Second):
		t.Fatal("no attempt to revoke")
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close(t.Context()) }()
	rest(t, 100*time.Millisecond) // the first attempt to revoke has ended
	close(gate)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if token := value[int64](f, "SELECT token FROM pglock.distributed_locks"); token != 2 {
		t.Errorf("control: token %d: the late statement did not win", token)
	}
	if value[bool](f, "SELECT holder IS NOT NULL FROM pglock.distributed_locks") {
		t.Error("the lock is held after Close")
	}
}
