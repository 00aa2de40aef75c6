package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

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

// TestCallsShareAStatement counts transactions: a hundred calls that arrive while the only worker
// is busy are sent in two.
func TestCallsShareAStatement(t *testing.T) {
	t.Parallel()
	const calls = 100
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2), pglock.WithBatches(64, false))
	var held sync.Map
	version := func() int { // of the snapshot: grows with each transaction that writes
		return value[int](f, "SELECT count(DISTINCT xmin::text) FROM pglock.distributed_locks WHERE name LIKE 'n%' AND holder IS NOT NULL")
	}
	resume := f.occupy(c)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			l, err := c.TryAcquire(t.Context(), fmt.Sprintf("n%02d", i))
			if err != nil {
				t.Error(err)
				return
			}
			held.Store(i, l)
		})
	}
	gathered(t, c, calls)
	resume()
	wg.Wait()
	if n := version(); n != 2 {
		t.Errorf("%d calls that waited together were granted in %d transactions, not 2", calls, n)
	}
	tokens := map[int64]bool{}
	held.Range(func(_, v any) bool {
		l := v.(*pglock.Lease)
		wg.Go(func() { release(t, l) })
		tokens[int64(l.Token())] = true
		return true
	})
	wg.Wait()
	if len(tokens) != calls {
		t.Errorf("%d grants with %d tokens", calls, len(tokens))
	}
	f.none("locks are held after all were released", "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL")
}

// TestDifferentLocksInABatch: known and new names, free and held ones, wanted once and twice. Each
// call gets the answer for its own name, from its first attempt.
func TestDifferentLocksInABatch(t *testing.T) {
	t.Parallel()
	f, events := newFixture(t), &recorder{}
	theirs := f.open(pglock.WithHolder("them"))
	c := f.open(pglock.WithMaxConns(2), pglock.WithHolder("us"), pglock.WithObserver(events.hooks()))
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
	resume := f.occupy(c)
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

// TestABadOneInABatch: a call whose statement fails does not fail the others.
func TestABadOneInABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2))
	f.sql(`CREATE FUNCTION pglock.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN IF NEW.name = 'bad' THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'data_exception'; END IF; RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.refuse()`)
	resume := f.occupy(c)
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
}

// TestI9_CanceledInABatch: the client sends nothing for callers that leave while they wait for a
// worker, and revokes the grants of callers that leave later.
func TestI9_CanceledInABatch(t *testing.T) {
	t.Parallel()
	const calls = 20
	f := newFixture(t)
	c := f.open(pglock.WithMaxConns(2), pglock.WithTTL(time.Hour))
	resume := f.occupy(c)
	ctx, cancel := context.WithCancel(t.Context())
	var leavers, stayers sync.WaitGroup
	for i := range calls {
		if i%2 == 0 {
			leavers.Go(func() {
				if _, err := c.TryAcquire(ctx, fmt.Sprint("leaver ", i)); !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			})
			continue
		}
		stayers.Go(func() { release(t, try(t, c, fmt.Sprint("stayer ", i))) })
	}
	gathered(t, c, calls)
	cancel()
	leavers.Wait()
	resume()
	stayers.Wait()
	f.none("attempts were sent after their callers had left", "SELECT count(*) FROM pglock.distributed_locks WHERE name LIKE 'leaver %'")

	// Once more, with the statement in progress when they leave. The dispatcher sends it: a statement
	// on a caller's goroutine is canceled, and the attempts behind it are never sent.
	again := f.stalled(f.open(pglock.WithBatches(64, true), pglock.WithTTL(time.Hour)), calls)
	again()
	pgtest.Eventually(t, "each late grant is revoked", func() bool {
		return value[bool](f, `SELECT count(*) > 0 AND bool_and(holder IS NULL AND version > 1)
			FROM pglock.distributed_locks WHERE name ~ '^n[0-9]'`)
	})
}

// stalled makes callers leave while their statement is stalled on the server, and then resumes it.
func (f fixture) stalled(c *pglock.Client, calls int) (resume func()) {
	f.t.Helper()
	f.sql("DROP TRIGGER stall ON pglock.distributed_locks")
	f.sql("DROP FUNCTION pglock.stall")
	resume = f.stall()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			if _, err := c.TryAcquire(ctx, fmt.Sprint("n", i), pglock.WithHolder("stalled")); !errors.Is(err, context.Canceled) {
				f.t.Errorf("%v", err)
			}
		})
	}
	f.awaitStalled()
	cancel()
	wg.Wait()
	return resume
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
