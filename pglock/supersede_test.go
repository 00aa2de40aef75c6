package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// superseding is a Do with WithSupersede in the background, whose function runs until its context ends.
type superseding struct {
	running chan struct{} // closed when the function runs
	cause   error         // of the end of the function's context, once ended has a value
	ended   chan error
}

func supersede(ctx context.Context, c *pglock.Client) *superseding {
	s := &superseding{running: make(chan struct{}), ended: make(chan error, 1)}
	go func() {
		s.ended <- c.Do(ctx, "deploy", func(ctx context.Context, _ *pglock.Lease) error {
			close(s.running)
			<-ctx.Done()
			s.cause = context.Cause(ctx)
			return nil
		}, pglock.WithSupersede())
	}()
	return s
}

func TestNewestWins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	outcome := func(what string, s *superseding, want error) {
		t.Helper()
		select {
		case err := <-s.ended:
			if !errors.Is(err, want) || want != nil && !errors.Is(err, pglock.ErrNotAcquired) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		case <-bounded(t, pgtest.Patience).Done():
			t.Fatalf("%s hangs", what)
		}
	}
	stubborn := try(t, f.open(), "deploy") // without the option
	var waiters []*superseding
	for i := range 3 {
		waiters = append(waiters, supersede(t.Context(), f.open()))
		until(f, fmt.Sprintf("call %d is the only one that waits", i), 1, `SELECT count(*) FROM pglock.locks_waiting AS w
			JOIN pglock.locks_held AS m ON m.name = 'newest: deploy' AND m.holder = w.client WHERE w.name = 'deploy'`)
		if i > 0 {
			outcome("an earlier waiter", waiters[i-1], pglock.ErrSuperseded)
		}
	}
	ends(t, "the holder is asked", stubborn.ReleaseRequested())
	release(t, stubborn)
	holder := waiters[2]
	ends(t, "the newest call runs", holder.running)

	last := supersede(t.Context(), f.open())
	ends(t, "a newer call runs", last.running)
	outcome("the holder that was asked", holder, nil)
	if !errors.Is(holder.cause, pglock.ErrSuperseded) {
		t.Errorf("its context ended with %v", holder.cause)
	}
	f.none("mark is left", "SELECT count(*) FROM pglock.locks_held WHERE name LIKE 'newest%'")
	l := value[int64](f, "SELECT token FROM pglock.locks_held WHERE name = 'deploy'")
	must(t, f.open().RequestRelease(t.Context(), "deploy", pglock.Token(l), "an operator's"))
	outcome("the last one, at an operator's request", last, nil)
}

// TestSupersedingCallsExclude: of many calls at the same time in several processes each runs alone, or ends
// with ErrSuperseded, and the last one to come runs. The control has no lock.
func TestSupersedingCallsExclude(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const processes, calls = 4, 6
	var inside, overlaps, ended atomic.Int32
	work := func(ctx context.Context, _ *pglock.Lease) error {
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		defer inside.Add(-1)
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range processes {
		c := f.open()
		for range calls {
			all.Go(func() {
				if err := c.Do(ctx, "deploy", work, pglock.WithSupersede()); err != nil && !errors.Is(err, pglock.ErrSuperseded) {
					t.Errorf("a call: %v", err)
				}
				ended.Add(1)
			})
		}
	}
	pgtest.Eventually(t, "one call is left, and runs", func() bool { return ended.Load() == processes*calls-1 && inside.Load() == 1 })
	last := supersede(ctx, f.open())
	ends(t, "the last call runs", last.running)
	all.Wait()
	if got := overlaps.Load(); got != 0 {
		t.Errorf("%d calls ran beside another", got)
	}
	for range 2 {
		all.Go(func() { check(t, work(ctx, nil)) })
	}
	pgtest.Eventually(t, "control: without a lock they overlap", func() bool { return overlaps.Load() == 1 })
	cancel()
	all.Wait()
	check(t, <-last.ended)
}

// TestGrantOfASupersededCall: a call that is granted the lock before it knows of a newer one releases it.
func TestGrantOfASupersededCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := try(t, c, "deploy")
	left := leaving(t.Context(), f.open(pglock.WithPollOnly()).Lock("deploy"), pglock.WithSupersede())
	until(f, "it waits", 1, "SELECT count(*) FROM pglock.locks_waiting WHERE name = 'deploy'")
	mark := value[int64](f, "SELECT token FROM pglock.locks_held WHERE name = 'newest: deploy'")
	must(t, c.Revoke(t.Context(), "newest: deploy", pglock.Token(mark), "a newer call")) // it learns of that by its next renewal
	release(t, l)
	fails(t, "the call", <-left, pglock.ErrSuperseded, pglock.ErrNotAcquired)
	release(t, try(t, c, "deploy"))
}

func TestSupersedeNeedsOneHolder(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	for _, l := range []pglock.Lock{c.Semaphore("s", 2), c.Reader("r"), c.Writer("r"), c.All(c.Lock("a"), c.Lock("b"))} {
		_, err := l.TryAcquire(t.Context(), pglock.WithSupersede())
		fails(t, l.Name(), err, pglock.ErrInvalidOption)
	}
	_, err := c.TryAcquire(t.Context(), strings.Repeat("n", 512-len("newest: ")+1), pglock.WithSupersede())
	fails(t, "a long name", err, pglock.ErrInvalidOption)
}
