package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestHandoffInAProcess: waiters of one process get the lock in one statement each, with their own
// tokens. A release and a grant would change the row twice.
func TestHandoffInAProcess(t *testing.T) {
	t.Parallel()
	const waiters = 30
	f := newFixture(t)
	c := f.open()
	held := try(t, c, "n")
	tokens := []fencing.Token{held.Token()}
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			l := acquire(t, c, "n")
			tokens = append(tokens, l.Token()) // only one goroutine at a time holds the lock
			release(t, l)
		})
	}
	pgtest.Eventually(t, "all wait", func() bool { return pglock.Waiting(c, "n") == waiters })
	release(t, held)
	wg.Wait()
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			t.Fatalf("tokens %v", tokens)
		}
	}
	version := value[int](f, "SELECT version FROM pglock.distributed_locks WHERE name = 'n'")
	if least, most := waiters+2, 2*(waiters+1); version < least || version > (least+most)/2 {
		t.Errorf("%d grants changed the row %d times, not about %d", waiters+1, version, least)
	}
}

// TestHandoffYields: a waiter of another process is next, although a local one waits for a
// hand-off.
func TestHandoffYields(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ours, theirs := f.open(), f.open()
	for range 5 {
		held := try(t, ours, "n")
		got := make(chan string, 2)
		var wg sync.WaitGroup
		wait := func(who string, c *pglock.Client) {
			wg.Go(func() {
				l := acquire(t, c, "n")
				got <- who
				release(t, l)
			})
			pgtest.Eventually(t, "it rests in the queue", func() bool { return pglock.HeadWaits(c, "n") })
		}
		wait("theirs", theirs)
		wait("ours", ours)
		release(t, held)
		if first := <-got; first != "theirs" {
			t.Errorf("%s came first", first)
		}
		wg.Wait()
	}
}

// TestHandoffAfterAUsedUpRequest: a waiter whose request was used up has a new one, and the lock is
// handed off to that one. A client of another process then recognizes the lease by it.
func TestHandoffAfterAUsedUpRequest(t *testing.T) {
	t.Parallel()
	f, events := newFixture(t), &recorder{}
	c, theirs := f.open(pglock.WithObserver(events.hooks())), f.open()
	for round := range 10 { // a waiter that is just making an attempt is granted the lock without a hand-off
		name := fmt.Sprint("n", round) // the queue keeps the row of the last waiter for a name
		held := try(t, c, name)
		waiter := f.waits(c, name, pglock.WithHolder("successor"))
		request := func() string { return pglock.HeadRequest(c, name) }
		first := request()
		// The row says that the waiter's request was granted, and that its grant has ended. Another
		// waiter is ahead, so that the next request is not granted at once.
		f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at, keep_until) "+
			"SELECT name, 'ghost', ticket - 1, expires_at, expires_at FROM pglock.lock_waiters WHERE name = $1", name)
		f.sql("CREATE TABLE pglock.saved AS SELECT name, request, holder, expires_at FROM pglock.distributed_locks")
		f.sql("UPDATE pglock.distributed_locks SET request = $2::text::uuid, holder = NULL, expires_at = clock_timestamp() WHERE name = $1", name, first)
		f.sql("SELECT pg_notify(client, name) FROM pglock.lock_waiters WHERE name = $1 AND holder = 'successor'", name)
		pgtest.Eventually(t, "the waiter has a new request", func() bool { return request() != first })
		f.sql("UPDATE pglock.distributed_locks AS l SET request = s.request, holder = s.holder, expires_at = s.expires_at "+
			"FROM pglock.saved AS s WHERE l.name = $1 AND s.name = $1", name)
		f.sql("DROP TABLE pglock.saved")
		f.sql("DELETE FROM pglock.lock_waiters WHERE client = 'ghost'")
		release(t, held)
		l := next(t, waiter)
		var carried *pglock.HeldError
		if _, err := theirs.TryAcquire(l.Context(), name); !errors.As(err, &carried) {
			t.Errorf("another client does not recognize the lease: %v", err)
		}
		release(t, l)
		if acquired := await[observe.AcquireEvent](t, events, 2*(round+1)); acquired[len(acquired)-1].HandedOff {
			return
		}
	}
	t.Error("no hand-off in ten rounds")
}

// TestI1_I9_WaitersThatLeaveAtAnyMoment has many goroutines of two clients wait and leave at
// random, also while the lock is handed off to them: by their context, or by the end of their wait.
// Afterwards the lock is soon free, although the TTL is an hour.
func TestI1_I9_WaitersThatLeaveAtAnyMoment(t *testing.T) {
	t.Parallel()
	const clients, waiters, rounds = 2, 12, 25
	f := newFixture(t)
	var inside, overlaps, granted, left atomic.Int32
	var wg sync.WaitGroup
	for range clients {
		c := f.open(pglock.WithTTL(time.Hour))
		for i := range waiters {
			wg.Go(func() {
				for range rounds {
					ctx, cancel := context.WithCancel(t.Context())
					var opts []pglock.LeaseOption
					switch i % 3 {
					case 1:
						time.AfterFunc(rand.N(8*time.Millisecond), cancel)
					case 2:
						opts = append(opts, pglock.WithWait(1+rand.N(6*time.Millisecond)))
					}
					l, err := c.Acquire(ctx, "n", opts...)
					switch {
					case err == nil:
						if inside.Add(1) > 1 {
							overlaps.Add(1)
						}
						granted.Add(1)
						inside.Add(-1)
						release(t, l)
					case !errors.Is(err, context.Canceled) && !errors.Is(err, pglock.ErrTimeout):
						t.Error(err)
					default:
						left.Add(1)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if overlaps.Load() > 0 || granted.Load() < clients*waiters/3*rounds || left.Load() == 0 {
		t.Errorf("%d grants, %d overlaps, %d left", granted.Load(), overlaps.Load(), left.Load())
	}
	pgtest.Eventually(t, "nothing is left behind", func() bool { return f.tickets("n") == 0 && value[int](f, grants) == 0 })
	release(t, held(t, f.open().Lock("n")))
}

// handOffs calls a function when a statement that hands a lock off has its answer, before its caller has it.
type handOffs struct{ answered atomic.Pointer[func()] }

type handsOff struct{}

func (h *handOffs) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, handsOff{}, strings.Contains(d.SQL, "last_end = 'released'") && strings.Contains(d.SQL, "w.client <> $7"))
}

func (h *handOffs) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if does, _ := ctx.Value(handsOff{}).(bool); does {
		(*h.answered.Load())()
	}
}

// TestI9_AHandOffToACallerThatLeaves: the caller's context ends with the hand-off to it, and in every other round it
// has left before that is delivered. It has the lease, or nothing is left of the grant, although the TTL is an hour.
func TestI9_AHandOffToACallerThatLeaves(t *testing.T) {
	t.Parallel()
	tracer := &handOffs{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer })
	f := fixture{t, pool, pgtest.Schema(t, pool)}
	nothing := func() {}
	tracer.answered.Store(&nothing)
	c := locktest.ClientOn(t, pool, pglock.WithSchema(f.schema), pglock.WithTTL(time.Hour))
	gone, handedOff := 0, 0
	for round := 0; round < 300 && gone < 20; round++ {
		name := fmt.Sprint("n", round)
		held := try(t, c, name)
		ctx, cancel := context.WithCancel(t.Context())
		type result struct {
			l   *pglock.Lease
			err error
		}
		got, returned := make(chan result, 1), make(chan struct{})
		go func() {
			l, err := c.Acquire(ctx, name)
			got <- result{l, err}
			close(returned)
		}()
		pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(c, name) })
		leave := func() {
			cancel()
			handedOff++
			if round%2 == 0 {
				return
			}
			select {
			case <-returned:
			case <-time.After(time.Minute):
				t.Error("the caller does not leave before the hand-off")
			}
		}
		tracer.answered.Store(&leave)
		release(t, held)
		cancel()
		if r := <-got; r.err == nil {
			release(t, r.l)
		} else {
			gone++
		}
		tracer.answered.Store(&nothing)
	}
	if gone == 0 || handedOff == 0 {
		t.Errorf("%d callers left, %d hand-offs", gone, handedOff)
	}
	must(t, c.Close(t.Context())) // it waits until the grants to those who have left are revoked
	if n := value[int](f, grants); n > 0 {
		t.Errorf("%d grants are left", n)
	}
}

// TestAHandOffWhoseAnswerIsLost: the lock is the successor's, or was released, and the release has not failed.
func TestAHandOffWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	var lost atomic.Int32
	proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
		if strings.Contains(r.SQL, "w.client <> $7") {
			lost.Add(1)
			return faultproxy.LoseReply
		}
		return faultproxy.Pass
	})
	c := far.open(pglock.WithTTL(time.Hour))
	pgtest.Eventually(t, "an answer is lost", func() bool { // unless the waiter makes an attempt just then
		held := try(t, c, "n")
		got := f.waits(c, "n")
		began := time.Now()
		if err := held.Release(t.Context()); err != nil && time.Since(began) < timing.StatementBound { // a loaded machine may need longer
			t.Error(err)
		}
		release(t, next(t, got))
		return lost.Load() > 0
	})
	until(f, "no grant is left", 0, grants)
}
