package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// nestedCall is what one call of a test holds and then waits for.
type nestedCall struct{ first, then pglock.Lock }

// closeCycle acquires the first locks, then waits for the others one after the other, each when the one before is
// known to wait, and returns the results. A call that fails releases what it holds.
func closeCycle(f fake, calls []nestedCall, opts ...pglock.LeaseOption) []error {
	f.t.Helper()
	results := make([]error, len(calls))
	var all sync.WaitGroup
	var leases []*pglock.Lease
	for _, call := range calls {
		leases = append(leases, tried(f.t, call.first))
	}
	for i, call := range calls {
		all.Go(func() {
			defer func() { release(f.t, leases[i]) }()
			l, err := call.then.Acquire(leases[i].Context(), opts...)
			if results[i] = err; err == nil {
				release(f.t, l)
			}
		})
		if i < len(calls)-1 {
			rest(f.t, 2*timing.DeadlockAfter) // it is known to wait
		}
	}
	all.Wait()
	return results
}

// TestDeadlock: the call that closes a cycle gets ErrDeadlock with the cycle in words, and the others their locks.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		calls func(a, b, c *pglock.Client) []nestedCall
		words string
		opts  []pglock.LeaseOption
	}{
		{"two names", func(a, b, _ *pglock.Client) []nestedCall {
			return []nestedCall{{a.Lock("x"), a.Lock("y")}, {b.Lock("y"), b.Lock("x")}}
		}, `B waits for "x", which A holds; A waits for "y", which B holds`, nil},
		{"in one client", func(a, _, _ *pglock.Client) []nestedCall {
			return []nestedCall{{a.Lock("x"), a.Lock("y")}, {a.Lock("y"), a.Lock("x")}}
		}, `A waits for "x", which A holds; A waits for "y", which A holds`, nil},
		{"three names", func(a, b, c *pglock.Client) []nestedCall {
			return []nestedCall{{a.Lock("x"), a.Lock("y")}, {b.Lock("y"), b.Lock("z")}, {c.Lock("z"), c.Lock("x")}}
		}, `C waits for "x", which A holds; A waits for "y", which B holds; B waits for "z", which C holds`, nil},
		{"a reader and a writer", func(a, b, _ *pglock.Client) []nestedCall {
			return []nestedCall{{a.Reader("x"), a.Lock("y")}, {b.Lock("y"), b.Writer("x")}}
		}, `B waits for "x", which A holds; A waits for "y", which B holds`, nil},
		{"permits", func(a, b, c *pglock.Client) []nestedCall {
			return []nestedCall{{a.Semaphore("x", 2), a.Lock("y")}, {b.Semaphore("x", 2), b.Lock("y")}, {c.Lock("y"), c.Semaphore("x", 2)}}
		}, `which C holds`, nil},
		{"several names", func(a, b, _ *pglock.Client) []nestedCall {
			return []nestedCall{{a.Lock("x"), locktest.All(a, "y", "z")}, {b.Lock("z"), b.Lock("x")}}
		}, `B waits for "x", which A holds; A waits for "z", which B holds`, nil},
		{"overtaking", func(a, b, _ *pglock.Client) []nestedCall {
			return []nestedCall{{a.Lock("x"), a.Lock("y")}, {b.Lock("y"), b.Lock("x")}}
		}, `B waits for "x", which A holds; A waits for "y", which B holds`, []pglock.LeaseOption{pglock.WithBarging()}},
	} {
		bubbles(t, tc.name, func(t *testing.T, f fake) {
			calls := tc.calls(f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B")), f.open(pglock.WithHolder("C")))
			results := closeCycle(f, calls, tc.opts...)
			last := len(results) - 1
			var wait *pglock.WaitError
			if err := results[last]; !errors.Is(err, pglock.ErrDeadlock) || !errors.As(err, &wait) || errors.Is(err, context.Canceled) ||
				!strings.Contains(err.Error(), "deadlock: ") || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("the last call: %v", err)
			}
			check(t, errors.Join(results[:last]...))
		})
	}
}

// TestADeadlockThroughTheQueue: a reader waits behind a writer, who holds nothing, and who waits for a reader that
// waits for the first one.
func TestADeadlockThroughTheQueue(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(c *pglock.Client) pglock.Lock{
		"a writer":      func(c *pglock.Client) pglock.Lock { return c.Writer("shared") },
		"several names": func(c *pglock.Client) pglock.Lock { return c.All(c.Writer("shared"), c.Lock("free")) },
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			a, b, c := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B")), f.open(pglock.WithHolder("C"))
			shared, own := tried(t, a.Reader("shared")), try(t, b, "own")
			written := make(chan error, 1)
			go func() {
				l, err := between(c).Acquire(t.Context())
				if err == nil {
					err = l.Release(t.Context())
				}
				written <- err
			}()
			synctest.Wait()
			read := make(chan error, 1)
			go func() {
				l, err := b.Reader("shared").Acquire(own.Context(), pglock.WithWait(20*time.Second))
				if err == nil {
					err = l.Release(t.Context())
				}
				read <- err
			}()
			rest(t, 2*timing.DeadlockAfter) // the reader is known to wait
			_, err := a.Acquire(shared.Context(), "own", pglock.WithWait(10*time.Second))
			fails(t, "the call that closes the cycle", err, pglock.ErrDeadlock)
			if want := `B waits for "shared", where C is before it; C waits for "shared", which A holds`; !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			release(t, shared)
			for _, done := range []chan error{written, read} {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			release(t, own)
		})
	}
}

// TestNoDeadlock: waits under a lease that end. A semaphore has another holder, a reader another one behind
// which nobody waits, and a call that was asked for nothing holds what it waits for.
func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B")), f.open(pglock.WithHolder("C"))
	one, two := tried(t, a.Semaphore("s", 2)), tried(t, c.Semaphore("s", 2)) // C waits for nothing
	own := try(t, b, "own")
	results := make(chan error, 2)
	acquire := func(under *pglock.Lease, l pglock.Lock) {
		got, err := l.Acquire(under.Context())
		if err == nil {
			err = got.Release(t.Context())
		}
		results <- errors.Join(err, under.Release(t.Context()))
	}
	go acquire(own, b.Semaphore("s", 2))
	until(f, "B waits", 1, "SELECT count(*) FROM pglock.nested_waits WHERE number > 0")
	go acquire(one, a.Lock("own"))
	until(f, "A waits", 2, "SELECT count(*) FROM pglock.nested_waits WHERE number > 0")
	s, err := c.Snapshot(t.Context(), inspect.Query{})
	must(t, err)
	if want := []inspect.NestedWait{
		{Holder: "B", Names: []string{"s"}, Holds: []fencing.Token{own.Token()}}, {Holder: "A", Names: []string{"own"}, Holds: []fencing.Token{one.Token()}},
	}; !slices.EqualFunc(s.Nested, want, func(a, b inspect.NestedWait) bool {
		return a.Holder == b.Holder && slices.Equal(a.Names, b.Names) && slices.Equal(a.Holds, b.Holds) && a.Waited > 0
	}) {
		t.Errorf("the snapshot has %v", s.Nested)
	}
	first := value[time.Time](f, "SELECT max(expires_at) FROM pglock.nested_waits WHERE number > 0")
	pgtest.Eventually(t, "both have looked again", func() bool {
		return value[bool](f, "SELECT min(expires_at) > $1 FROM pglock.nested_waits WHERE number > 0", first)
	})
	if len(results) > 0 {
		t.Errorf("a wait has ended: %v", <-results)
	}
	release(t, two)
	if err := errors.Join(<-results, <-results); err != nil {
		t.Error(err)
	}
}

// TestForgedWaitsEnd: rows that a role has written, with the numbers of waits to come or without an end, neither
// make a call fail nor hide a deadlock.
func TestForgedWaitsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	a, b := f.open(pglock.WithHolder("A")), f.open(pglock.WithHolder("B"))
	one, two := try(t, a, "one"), try(t, b, "two")
	const forge = "INSERT INTO pglock.nested_waits (number, names, weights, holds, holders, ticket, holder, expires_at, request) "
	user.sql(forge+"VALUES (-1, '{one}', '{1}', ARRAY[$1::bigint], '{B}', $2, 'B', '2261-01-01', gen_random_uuid())", two.Token(), int64(math.MaxInt64))
	wait := func(waiter string, under *pglock.Lease, name string) string {
		return value[string](f, "SELECT coalesce(pglock.nested_wait(ARRAY[$1], '{1}', ARRAY[$2::bigint], $3, gen_random_uuid()), '')", name, under.Token(), waiter)
	}
	if cycle := wait("A", one, "two"); cycle != "" {
		t.Errorf("a forged wait: %s", cycle)
	}
	user.sql(forge + "SELECT s.last_value + i, '{x}', '{1}', '{}', '{}', 0, '', clock_timestamp() + interval '2 s', gen_random_uuid() FROM generate_series(1, 100) AS i, " +
		"(SELECT max(number) AS last_value FROM pglock.nested_waits) AS s")
	if cycle := wait("B", two, "one"); cycle == "" {
		t.Error("a deadlock is not found")
	}
	release(t, one)
	release(t, two)
}

// TestADeadlockAfterAHandOver: what another process has taken over does not count any more.
func TestADeadlockAfterAHandOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.open(), f.open()
	outer := try(t, a, "outer")
	inner, err := a.Acquire(outer.Context(), "inner")
	must(t, err)
	busy := try(t, b, "busy")
	got := make(chan error, 1)
	go func() {
		l, err := a.Acquire(inner.Context(), "busy")
		if err == nil {
			err = l.Release(t.Context())
		}
		got <- err
	}()
	const held = "SELECT coalesce(max(cardinality(holds)), 0) FROM pglock.nested_waits"
	until(f, "it waits and holds two locks", 2, held)
	_, err = outer.HandOver()
	must(t, err)
	until(f, "it holds one of them", 1, held)
	release(t, busy)
	if err := locktest.Receive(t, got); err != nil {
		t.Error(err)
	}
	release(t, inner)
}

// TestADeadlockThatNobodyLooksFor is the control: both calls wait until their time is over.
func TestADeadlockThatNobodyLooksFor(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		f = f.through(func(s backend.Store) backend.Store { return unlooked{s} })
		a, b := f.open(), f.open()
		results := closeCycle(f, []nestedCall{{a.Lock("x"), a.Lock("y")}, {b.Lock("y"), b.Lock("x")}}, pglock.WithWait(4*time.Second))
		if !errors.Is(errors.Join(results...), pglock.ErrTimeout) || errors.Is(errors.Join(results...), pglock.ErrDeadlock) {
			t.Errorf("nobody has waited for too long: %v", results)
		}
	})
}

// TestRandomCycles: all cycles of 2 to 6 clients are found, soon, and one call of each fails.
func TestRandomCycles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rounds := 20
	if os.Getenv("PGLOCK_CHAOS") != "" {
		rounds = 1000
	}
	var clients []*pglock.Client
	for i := range 6 {
		clients = append(clients, f.open(pglock.WithHolder(fmt.Sprint("client ", i))))
	}
	var took []time.Duration
	for round := range rounds {
		n := 2 + rand.IntN(5)
		order := rand.Perm(6)[:n]
		var leases []*pglock.Lease
		for i, c := range order {
			leases = append(leases, try(t, clients[c], fmt.Sprintf("%d:%d", round, i)))
		}
		var failed atomic.Int32
		var last, found atomic.Int64 // the last wait to begin, and the deadlock
		var all sync.WaitGroup
		began := time.Now()
		for i, c := range order {
			all.Go(func() {
				defer func() { release(t, leases[i]) }()
				<-time.After(rand.N(30 * time.Millisecond))
				last.Store(max(last.Load(), int64(time.Since(began))))
				l, err := clients[c].Acquire(leases[i].Context(), fmt.Sprintf("%d:%d", round, (i+1)%n))
				switch {
				case err == nil:
					release(t, l)
				case errors.Is(err, pglock.ErrDeadlock):
					failed.Add(1)
					found.Store(int64(time.Since(began)))
					if strings.Count(err.Error(), "waits for") != n {
						t.Errorf("a cycle of %d: %v", n, err)
					}
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if failed.Load() != 1 {
			t.Errorf("round %d: %d of %d calls have failed", round, failed.Load(), n)
		}
		took = append(took, time.Duration(found.Load()-last.Load()))
	}
	slices.Sort(took)
	if took[rounds/2] > time.Second {
		t.Error("most cycles are found by the second look only")
	}
	t.Logf("%d cycles, found after %v (median), %v (99 %%), %v (longest)", rounds, took[rounds/2], took[rounds*99/100], took[rounds-1])
}

// TestNestedCallsWithoutACycle: calls that acquire several locks one inside the other, always in the same order,
// wait and are granted them.
func TestNestedCallsWithoutACycle(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := int64(400) // that have a lease in their context
	if os.Getenv("PGLOCK_CHAOS") != "" {
		calls = 100_000
	}
	kinds := func(c *pglock.Client, i int) pglock.Lock {
		name := fmt.Sprint("level ", i)
		switch i % 4 {
		case 0:
			return c.Semaphore(name, 3)
		case 1:
			return c.Lock(name)
		case 2:
			return c.All(c.Lock(name), c.Lock(name+", too"))
		}
		if rand.IntN(4) == 0 {
			return c.Writer(name)
		}
		return c.Reader(name)
	}
	var nested atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		c := f.open()
		for range 6 {
			all.Go(func() {
				for nested.Load() < calls && !t.Failed() {
					ctx, held := t.Context(), []*pglock.Lease{}
					for i := range 8 {
						if rand.IntN(2) == 0 {
							continue
						}
						l, err := kinds(c, i).Acquire(ctx)
						if err != nil {
							t.Error(err)
							break
						}
						if len(held) > 0 {
							nested.Add(1)
						}
						ctx, held = l.Context(), append(held, l)
					}
					<-time.After(rand.N(3 * time.Millisecond))
					for _, l := range slices.Backward(held) {
						release(t, l)
					}
				}
			})
		}
	}
	looks := 0
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	pgtest.Eventually(t, "all calls", func() bool {
		looks = max(looks, value[int](f, "SELECT count(*) FROM pglock.nested_waits WHERE number > 0"))
		select {
		case <-finished:
			return true
		default:
			return false
		}
	})
	if looks == 0 {
		t.Error("no call has waited long enough to be looked at")
	}
	t.Logf("%d nested calls, at most %d that waited at a time", nested.Load(), looks)
	f.none("waits are left", "SELECT count(*) FROM pglock.nested_waits WHERE number > 0")
}

// unlooked is a store that finds no deadlock.
type unlooked struct{ backend.Store }

func (unlooked) NestedWait(context.Context, *leasetable.NestedWait) (cycle string, err error) {
	return "", nil
}
