package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// oneSlot is the store of a client that sends one statement at a time.
type oneSlot struct{ backend.Store }

func (oneSlot) Slots() int { return 1 }

// occupied returns a client whose only statement in flight has no answer until resume is called, so
// that further calls gather and share the next one. The statement acquires the lock "in the way".
func (f fake) occupied(opts ...pglock.Option) (c *pglock.Client, resume func()) {
	f.t.Helper()
	n, far := f.proxied()
	wrap := f.wrap
	c = far.through(func(s backend.Store) backend.Store {
		if wrap != nil {
			s = wrap(s)
		}
		return oneSlot{s}
	}).open(opts...)
	n.HoldReplies()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err := c.TryAcquire(f.t.Context(), "in the way")
		if check(f.t, err); err == nil {
			release(f.t, l)
		}
	}()
	synctest.Wait()
	return c, func() { n.Heal(); <-done }
}

// TestCallsShareAStatement: a hundred calls that arrive while the only worker is busy are sent in
// two statements.
func TestCallsShareAStatement(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const calls = 100
		r := &recorder{}
		c, resume := f.occupied(pglock.WithBatches(64, false), pglock.WithObserver(r.hooks()))
		leases := make([]*pglock.Lease, calls)
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() { leases[i] = try(t, c, fmt.Sprint("n", i)) })
		}
		gathered(t, c, calls)
		resume()
		all.Wait()
		var sizes []int
		for _, b := range events[observe.BatchEvent](r) {
			if b.Operation == observe.OperationAcquire {
				sizes = append(sizes, b.Size)
			}
		}
		if !slices.Equal(sizes, []int{1, 64, 36}) {
			t.Errorf("statements for %v calls", sizes)
		}
		tokens := map[pglock.Token]bool{}
		for _, l := range leases {
			tokens[l.Token()] = true
			all.Go(func() { release(t, l) })
		}
		all.Wait()
		if len(tokens) != calls {
			t.Errorf("%d grants with %d tokens", calls, len(tokens))
		}
		for _, l := range leases {
			f.empty(l.Name())
		}
	})
}

// TestDifferentLocksInABatch: known and new names, free and held ones, wanted once and twice. Each
// call gets the answer for its own name, from its first attempt.
func TestDifferentLocksInABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		events := &recorder{}
		theirs := f.open(pglock.WithHolder("them"))
		wanted := map[string]int{"a free": 2, "b free": 1, "c held": 1, "d held": 2, "e free": 1, "f held": 1, "g new": 1, "h new": 2, "i free": 1}
		calls, free := 0, 0
		for name, times := range wanted {
			calls += times
			if !strings.HasSuffix(name, "held") {
				free++
			}
			if !strings.HasSuffix(name, "new") {
				if l := try(t, theirs, name); strings.HasSuffix(name, "free") {
					release(t, l)
				}
			}
		}
		c, resume := f.occupied(pglock.WithHolder("us"), pglock.WithObserver(events.hooks()))
		var wg sync.WaitGroup
		for name, times := range wanted {
			for range times {
				wg.Go(func() {
					l, err := c.TryAcquire(t.Context(), name)
					if err == nil {
						release(t, l)
						return
					}
					holder := "us" // the other call in this batch
					if strings.HasSuffix(name, "held") {
						holder = "them"
					}
					var busy *pglock.BusyError
					if !errors.As(err, &busy) || busy.Name != name || busy.Holder != holder || busy.Token == 0 || busy.Remaining <= 0 {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		gathered(t, c, calls)
		resume()
		wg.Wait()
		granted := 0
		for _, e := range await[observe.AcquireEvent](t, events, 1+calls) {
			if e.Name == "in the way" {
				continue
			}
			if e.Attempts != 1 {
				t.Errorf("%s was tried %d times", e.Name, e.Attempts)
			}
			if e.Outcome == observe.OutcomeGranted {
				granted++
			}
		}
		if granted != free {
			t.Errorf("%d of %d free locks were granted", granted, free)
		}
	})
}

// withoutBad is a store that refuses statements for the lock "bad".
type withoutBad struct{ backend.Store }

func (s withoutBad) AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	if slices.ContainsFunc(batch, func(r *leasetable.Request) bool { return r.Name == "bad" }) {
		return make([]leasetable.Grant, len(batch)), &pgconn.PgError{Code: "22000"} // data_exception
	}
	return s.Store.AcquireFast(ctx, batch)
}

// TestABadOneInABatch: a call whose statement fails does not fail the others.
func TestABadOneInABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, resume := f.through(func(s backend.Store) backend.Store { return withoutBad{s} }).occupied()
		var wg sync.WaitGroup
		for _, name := range []string{"a", "bad", "c", "d"} {
			wg.Go(func() {
				_, err := c.TryAcquire(t.Context(), name)
				if (err != nil) != (name == "bad") || errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		gathered(t, c, 4)
		resume()
		wg.Wait()
	})
}

// TestI9_CanceledInABatch: the client sends nothing for callers that leave while they wait for a
// worker, and revokes the grants of callers that leave later.
func TestI9_CanceledInABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		const calls = 20
		c, resume := f.occupied(pglock.WithTTL(time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		leave := func(c *pglock.Client, name string) func() {
			return func() { fails(t, name, second(c.TryAcquire(ctx, name)), context.Canceled) }
		}
		var leavers, stayers sync.WaitGroup
		for i := range calls / 2 {
			leavers.Go(leave(c, fmt.Sprint("leaver ", i)))
			stayers.Go(func() { release(t, try(t, c, fmt.Sprint("stayer ", i))) })
		}
		gathered(t, c, calls)
		cancel()
		leavers.Wait()
		resume()
		stayers.Wait()
		for i := range calls / 2 {
			fails(t, "sent after its caller had left", second(c.Get(t.Context(), fmt.Sprint("leaver ", i))), pglock.ErrNotFound)
		}

		// Once more, with the statement in progress when they leave. The dispatcher sends it: a statement
		// on a caller's goroutine is canceled, and the attempts behind it are never sent.
		for i := range calls { // its row exists, so the first statement grants it
			release(t, try(t, f.open(), fmt.Sprint("n", i)))
		}
		n, far := f.proxied()
		again := far.open(pglock.WithBatches(64, true), pglock.WithTTL(time.Hour))
		n.HoldReplies()
		ctx, cancel = context.WithCancel(t.Context())
		for i := range calls {
			leavers.Go(leave(again, fmt.Sprint("n", i)))
		}
		synctest.Wait()
		late := 0
		for i := range calls {
			if f.row(fmt.Sprint("n", i)).Held() {
				late++
			}
		}
		began := time.Now()
		cancel()
		leavers.Wait()
		atMost(t, timing.CancelGrace, "they have left", began)
		n.Heal()
		rest(t, time.Second)
		for i := range calls {
			f.empty(fmt.Sprint("n", i))
		}
		if late == 0 {
			t.Error("control: no grant was late")
		}
	})
}

// TestEachInABatchGetsItsOwnOptions checks holder, labels and TTL, for new and known locks. Values
// that all of a batch have in common are sent once.
func TestEachInABatchGetsItsOwnOptions(t *testing.T) {
	t.Parallel()
	const calls = 5
	for _, known := range []bool{false, true} {
		for _, alike := range []bool{false, true} {
			bubbles(t, fmt.Sprintf("known %v, alike %v", known, alike), func(t *testing.T, f fake) {
				for i := 0; known && i < calls; i++ {
					release(t, try(t, f.open(), fmt.Sprint("n", i)))
				}
				c, resume := f.occupied()
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
						if got := f.row(l.Name()); got.Holder != holder || got.Labels["of"] != of || got.Remaining != ttl {
							t.Errorf("call %d was granted as %+v", i, got)
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
	inBubble(t, func(t *testing.T, f fake) {
		c, resume := f.occupied()
		got := make(chan *pglock.Lease, 1)
		go func() { got <- try(t, c, "n") }()
		gathered(t, c, 1)
		resume()
		release(t, next(t, got))
	})
}

// halfWay is a store that needs a second statement for new names, and loses its answer.
type halfWay struct{ backend.Store }

func (s halfWay) AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	for _, r := range batch {
		r.New = false
	}
	return s.Store.AcquireFast(ctx, batch)
}

func (s halfWay) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	grants, err := s.Store.AcquireFull(ctx, batch)
	if len(batch) == 1 && batch[0].Name == "new" {
		return make([]leasetable.Grant, 1), io.ErrUnexpectedEOF
	}
	return grants, err
}

// TestP44_ABatchThatFailsHalfWayKeepsItsGrants: a batch may need several statements, each of which
// commits by itself. When the network breaks after the first one, the callers that it has granted
// have their leases, and the others get an error.
func TestP44_ABatchThatFailsHalfWayKeepsItsGrants(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		release(t, try(t, f.open(), "known")) // its row exists: the fast path grants it
		c, resume := f.through(func(s backend.Store) backend.Store { return halfWay{s} }).occupied(pglock.WithTTL(time.Hour))
		results := map[string]chan error{"known": make(chan error, 1), "new": make(chan error, 1)}
		for name, got := range results {
			go func() { got <- second(c.TryAcquire(t.Context(), name)) }()
		}
		gathered(t, c, 2)
		resume()
		check(t, <-results["known"])
		fails(t, "without an answer", <-results["new"], pglock.ErrUnavailable)
		if !f.row("known").Held() || f.row("new").Token == 0 {
			t.Errorf("control: %+v, %+v", f.row("known"), f.row("new"))
		}
		check(t, c.Close(t.Context()))
		f.empty("known", "new")
	})
}

// occupy keeps the client's only worker busy: a first grant waits until resume is called, so that
// further calls share the next statement. It uses the trigger of stall.
func (f fixture) occupy(c *pglock.Client) (resume func()) {
	f.t.Helper()
	goOn := f.stall()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err := c.TryAcquire(f.t.Context(), "in the way", pglock.WithHolder("stalled"))
		if err != nil {
			f.t.Error(err)
			return
		}
		release(f.t, l)
	}()
	f.awaitStalled()
	return func() { goOn(); <-done }
}

// gathered waits until n calls wait for a worker.
func gathered(t *testing.T, c *pglock.Client, n int) {
	t.Helper()
	pgtest.Eventually(t, "the calls gather", func() bool { return pglock.PendingCalls(c) == n })
}

// TestI11_ABlockedNameInABatch: names whose rows are locked, or are being inserted, delay no other call of
// a batch, and no other release.
func TestI11_ABlockedNameInABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2))
	leases := []*pglock.Lease{try(t, c, "b"), try(t, c, "locked and held"), try(t, c, "y")}
	release(t, try(t, c, "locked"))
	tx := begin(t, f)
	resume := f.occupy(c)
	run(t, tx, f.named("SELECT FROM pglock.distributed_locks WHERE name LIKE 'locked%' FOR UPDATE"))
	run(t, tx, f.named("INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at) VALUES ('inserted', 1, 1, now(), '-infinity')"))
	var others, blocked sync.WaitGroup
	for _, name := range []string{"a", "inserted", "locked", "z"} {
		others.Go(func() {
			_, err := c.TryAcquire(t.Context(), name)
			if (err == nil) != (len(name) == 1) || err != nil && !errors.Is(err, pglock.ErrNotAcquired) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for i, all := range []*sync.WaitGroup{&others, &blocked, &others} {
		all.Go(func() { release(t, leases[i]) })
	}
	gathered(t, c, 7)
	resume()
	done := make(chan struct{})
	go func() { others.Wait(); close(done) }()
	ends(t, "all others are answered", done)
	check(t, tx.Rollback(t.Context()))
	blocked.Wait()
}

// TestP37_NewNamesInOrder: the batch statement inserts rows in the order of names, which their
// tokens show. The control, without its ORDER BY, inserts them in the order of the parameters.
func TestP37_NewNamesInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ordered := func(prefix, statement string) bool {
		names := []string{prefix + "c", prefix + "a", prefix + "d", prefix + "b"}
		id := "00000000-0000-4000-8000-00000000000"
		f.sql(statement, names, []string{"h", "h", "h", "h"}, []string{id + "1", id + "2", id + "3", id + "4"},
			[]string{"{}", "{}", "{}", "{}"}, []int64{1e6, 1e6, 1e6, 1e6}, []int64{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64})
		return value[bool](f, "SELECT array_agg(name ORDER BY token) = array_agg(name ORDER BY name) FROM pglock.distributed_locks WHERE name LIKE '"+prefix+"%'")
	}
	if !ordered("n", pglock.AcquireFullSQL) {
		t.Error("not in the order of names")
	}
	if ordered("control", strings.ReplaceAll(pglock.AcquireFullSQL, "ORDER BY a.name COLLATE \"C\"", "")) {
		t.Error("control: in the order of names all the same")
	}
}

// TestNoDeadlockBetweenBatches makes clients acquire and release the same names in different
// orders, always with the batch statements.
func TestNoDeadlockBetweenBatches(t *testing.T) {
	t.Parallel()
	const clients, names, rounds = 3, 40, 4
	f := on(t, pgtest.Database(t)) // of its own, for its counters; deadlock_timeout is shorter than lock_timeout
	f.sql(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''20ms''', current_database()); END $$`)
	var wg sync.WaitGroup
	for client := range clients {
		c := f.open(pglock.WithBatches(16, true))
		for i := range names {
			wg.Go(func() {
				for round := range rounds {
					name := fmt.Sprint("round ", round, " name ", (i*7+client*13)%names) // new ones each round
					if l, err := c.TryAcquire(t.Context(), name); err == nil {
						release(t, l)
					} else if !errors.Is(err, pglock.ErrNotAcquired) {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	is(f, "deadlocks", int64(0), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}
