package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
)

// onTicket runs a statement, with the owner's rights, inside each statement that draws a ticket.
func (f fixture) onTicket(statement string) {
	f.t.Helper()
	f.sql(`CREATE FUNCTION pglock.on_ticket() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	       BEGIN ` + statement + `; RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER on_ticket BEFORE INSERT OR UPDATE OF ticket ON pglock.lock_waiters
	       FOR EACH ROW EXECUTE FUNCTION pglock.on_ticket()`)
}

// invalidateTickets makes all tickets drawn so far for name invalid.
const invalidateTickets = "UPDATE pglock.distributed_locks SET ticket = pglock.next_fencing_token() WHERE name = $1"

// gaps is a tracer that records how long a waiter rests before each attempt: after it has drawn a ticket, and
// after another attempt.
type gaps struct {
	question string // begins the statement of an attempt

	mu              sync.Mutex // guards the fields below
	drew, attempted time.Time  // when the last of them was answered; zero: the other one was
	draws, polls    []time.Duration
}

type traceKey struct{}

func (g *gaps) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasPrefix(d.SQL, g.question) {
		switch {
		case !g.drew.IsZero():
			g.draws = append(g.draws, time.Since(g.drew))
		case !g.attempted.IsZero():
			g.polls = append(g.polls, time.Since(g.attempted))
		}
	}
	return context.WithValue(ctx, traceKey{}, d.SQL)
}

func (g *gaps) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch sql, _ := ctx.Value(traceKey{}).(string); {
	case strings.Contains(sql, "joined AS ("):
		g.drew, g.attempted = time.Now(), time.Time{}
	case strings.HasPrefix(sql, g.question):
		g.drew, g.attempted = time.Time{}, time.Now()
	}
}

// counts returns how many attempts came after a ticket, and how many after another attempt.
func (g *gaps) counts() (draws, polls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.draws), len(g.polls)
}

// TestP46_SubscribeThenCheckAgain: a release during the drawing of a ticket does not see the ticket and sends
// no notification, so the waiter makes an attempt as soon as it has the ticket. The time before that attempt
// is compared with the pauses between the others, so the machine's speed does not matter.
func TestP46_SubscribeThenCheckAgain(t *testing.T) {
	t.Parallel()
	const draws = 5
	f := newFixture(t)
	tracer := &gaps{question: f.named(pglock.PeekSQL)[:60]}
	config := f.pool.Config()
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	l := try(t, f.open(), "n", pglock.WithTTL(time.Hour))
	got := f.waits(fixture{t, pool, f.schema}.open(pglock.WithPollOnly()), "n")
	for range draws {
		before, polls := tracer.counts()
		pgtest.Eventually(t, "pauses that have grown", func() bool { _, n := tracer.counts(); return n > polls+8 })
		f.sql(invalidateTickets, "n")
		pgtest.Eventually(t, "another ticket, and an attempt", func() bool { n, _ := tracer.counts(); return n > before })
	}
	release(t, l)
	release(t, next(t, got))
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	after, pause := slices.Sorted(slices.Values(tracer.draws))[draws/2], slices.Max(tracer.polls)
	t.Logf("attempts %v after a ticket, and at most %v after another attempt", tracer.draws, pause)
	if after > pause/8 {
		t.Errorf("half of the attempts came later than %v after a ticket, the longest pause is %v", after, pause)
	}
}

// TestAnInvalidTicketIsNotDrawnInALoop: each new ticket is invalid at once, since the lock's row is
// from a cluster with larger tickets. A waiter pauses before it draws another.
func TestAnInvalidTicketIsNotDrawnInALoop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "n")
	f.sql("CREATE SEQUENCE pglock.drawn")
	f.onTicket("PERFORM nextval(format('%I.drawn', TG_TABLE_SCHEMA)::regclass)")
	f.sql("UPDATE pglock.distributed_locks SET ticket = 4611686018427387904 WHERE name = 'n'")
	c := f.open(pglock.WithPollOnly())
	ctx := bounded(t, 2*time.Second)
	fails(t, "told", second(c.Acquire(ctx, "n")), context.DeadlineExceeded)
	drawn := value[int](f, "SELECT last_value FROM pglock.drawn")
	if drawn < 2 || drawn > 40 {
		t.Errorf("%d tickets were drawn in 2s", drawn)
	}
	release(t, held)
	release(t, acquire(t, c, "n"))
}

// TestAnOutageEndsEveryWaitAfterThirtySeconds: also for callers behind the head of their local
// queue, which make no attempts.
func TestAnOutageEndsEveryWaitAfterThirtySeconds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(pglock.WithTTL(time.Hour)), "n")
	proxy, far := f.proxied()
	c := far.openUnclosed()
	type end struct {
		err  error
		took time.Duration
	}
	ends := make(chan end, 4)
	wait := func() {
		began := time.Now()
		_, err := c.Acquire(t.Context(), "n")
		ends <- end{err, time.Since(began)}
	}
	for range 3 {
		go wait()
	}
	pgtest.Eventually(t, "they wait", func() bool { return pglock.Waiting(c, "n") == 3 && f.tickets("n") == 1 })
	proxy.Cut() // each attempt hangs until its bound of 5 s
	rest(t, 5*time.Second)
	go wait() // its own thirty seconds begin later
	var took []time.Duration
	for i := range 4 {
		got := <-ends
		took = append(took, got.took)
		if !errors.Is(got.err, pglock.ErrUnavailable) || !errors.Is(got.err, pglock.ErrNotAcquired) {
			t.Errorf("ended with %v", got.err)
		}
		// The first failure is known after 5 s, and the last attempt takes as long.
		if got.took < 30*time.Second || got.took > 43*time.Second {
			t.Errorf("call %d ended after %v", i, got.took)
		}
	}
	t.Logf("ended after %v", took)
	if took[2]-took[0] > 2*time.Second {
		t.Errorf("of one outage three callers were told after %v", took[:3])
	}
	proxy.Heal()
	proxy.Sever()
	check(t, c.Close(context.WithoutCancel(t.Context())))
	release(t, held)
}

// TestP56_ACanceledWaiterBlocksNobody: after its call has returned, its ticket keeps no caller of its own
// process from a free lock, and none of another process if the call returned in time. The call waits for
// the deletion of its ticket, though only for timing.CancelGrace, which a slow machine may exceed.
func TestP56_ACanceledWaiterBlocksNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder, waiter, other := f.open(), f.open(pglock.WithTTL(time.Hour)), f.open()
	late, timely := 0, 0 // calls
	for i := range 120 {
		name := fmt.Sprint("n", i%3)
		l := held(t, holder.Lock(name)) // a late grant of the round before may have to be revoked
		ctx, cancel := context.WithCancel(t.Context())
		left := leaving(ctx, waiter.Lock(name))
		if i%2 == 0 {
			rest(t, rand.N(4*time.Millisecond)) // perhaps while its ticket is drawn
		} else {
			pgtest.Eventually(t, "it waits", func() bool { return pglock.HeadWaits(waiter, name) })
		}
		began := time.Now()
		cancel()
		fails(t, "told", <-left, context.Canceled)
		inTime := time.Since(began) < timing.CancelGrace
		if inTime && i%4 > 1 {
			timely++
		}
		release(t, l)
		next, mustBeFree := waiter, true
		if i%4 > 1 {
			next, mustBeFree = other, inTime
		}
		l, err := next.TryAcquire(t.Context(), name)
		var busy *pglock.BusyError
		switch {
		case err == nil:
		case errors.As(err, &busy) && (busy.Holder != "" || !mustBeFree): // a late grant is revoked, and a late ticket deleted
			late++
			l = held(t, next.Lock(name))
		default:
			t.Fatalf("round %d: %v, with %d rows in the queue", i, err, f.tickets(name))
		}
		release(t, l)
	}
	if timely == 0 {
		t.Error("no call returned in time, so nothing was shown of other processes")
	}
	t.Logf("%d calls returned before their tickets were deleted", late)
}

// TestAGuardsEndIsFoundSoon: the end of a guarded transaction sends no notification. The waiter
// polls so often that it is late by a fraction of the transaction's duration. On a laden machine the
// statements themselves take long, so the transactions are longer in another round.
func TestAGuardsEndIsFoundSoon(t *testing.T) {
	t.Parallel()
	const rounds = 15
	f := newFixture(t)
	holder, waiter := f.open(), f.open()
	lateAfter := func(least time.Duration) time.Duration {
		var late []time.Duration
		for i := range rounds {
			name := fmt.Sprint(least, i)
			held := try(t, holder, name)
			got := f.waits(waiter, name)
			tx := begin(t, f)
			must(t, held.Guard(t.Context(), tx))
			release(t, held)
			rest(t, least+rand.N(least))
			must(t, tx.Commit(t.Context()))
			began := time.Now()
			l := next(t, got)
			late = append(late, time.Since(began))
			release(t, l)
		}
		slices.Sort(late)
		t.Logf("granted after the end of a transaction of %v or more: median %v, slowest %v", least, late[rounds/2], late[rounds-1])
		return late[rounds/2]
	}
	for least := 100 * time.Millisecond; lateAfter(least) > least*2/5; least *= 2 {
		if least > 100*time.Millisecond {
			t.Fatal("granted late after the end of a guarded transaction")
		}
	}
}
