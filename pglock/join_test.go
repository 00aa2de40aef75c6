package pglock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// refuses fails the test unless each call under ctx says at once that ctx holds the lock.
func refuses(ctx context.Context, t *testing.T, c *pglock.Client, l *pglock.Lease) {
	t.Helper()
	never := func(context.Context, *pglock.Lease) error { t.Error("the nested function ran"); return nil }
	ctx, cancel := context.WithTimeout(ctx, pgtest.Patience) // without the check the calls wait
	defer cancel()
	for what, err := range map[string]error{
		"Acquire": second(c.Acquire(ctx, l.Name())), "TryAcquire": second(c.TryAcquire(ctx, l.Name())),
		"Do": c.Do(ctx, l.Name(), never), "TryDo": c.TryDo(ctx, l.Name(), never),
	} {
		var held *pglock.HeldError
		if !errors.As(err, &held) || held.Token != l.Token() || held.Holder != l.Holder() || !errors.Is(err, pglock.ErrHeldByCaller) ||
			errors.Is(err, pglock.ErrNotAcquired) || !strings.Contains(err.Error(), "WithJoin") {
			t.Errorf("%s: told %v", what, err)
		}
	}
}

// TestTheOuterLeaseEndsUnderAJoinedDo: the joined work is told, by its context and by Do's error.
func TestTheOuterLeaseEndsUnderAJoinedDo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(f fake, c *pglock.Client, outer *pglock.Lease) error
		want error
	}{
		"released": {func(_ fake, _ *pglock.Client, outer *pglock.Lease) error {
			return outer.Release(context.Background())
		}, pglock.ErrReleased},
		"lost":   {func(f fake, _ *pglock.Client, _ *pglock.Lease) error { f.steal("n"); return nil }, pglock.ErrLost},
		"closed": {func(_ fake, c *pglock.Client, _ *pglock.Lease) error { return c.Close(context.Background()) }, pglock.ErrClosed},
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			c := f.open(pglock.WithTTL(5 * time.Second))
			var joined error
			outer := c.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
				joined = c.Do(ctx, "n", func(ctx context.Context, _ *pglock.Lease) error {
					check(t, tc.end(f, c, l))
					ends(t, "the joined function's context", ctx.Done())
					fails(t, "it ended", context.Cause(ctx), tc.want)
					return nil
				}, pglock.WithJoin())
				return nil
			})
			fails(t, "the joined Do", joined, tc.want)
			if released := name == "released"; released != (outer == nil) || !released && !errors.Is(outer, tc.want) {
				t.Errorf("the outer Do: %v", outer)
			}
		})
	}
}

// TestALockOfTheSameNameElsewhereIsAnotherLock: another database with the same schema, and even the
// same token and holder.
func TestALockOfTheSameNameElsewhereIsAnotherLock(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		l, elsewhere := try(t, f.open(), "n", pglock.WithHolder("h")), newFake(t)
		release(t, try(t, elsewhere.open(), "m")) // so that the next token is another one
		c := elsewhere.open()
		got, err := c.TryAcquire(l.Context(), "n")
		must(t, err)
		release(t, got)
		again := newFake(t)
		held := try(t, again.open(), "n", pglock.WithHolder("h")) // its row looks the same
		if held.Token() != l.Token() {
			t.Fatalf("control: tokens %d, %d", held.Token(), l.Token())
		}
		var busy *pglock.BusyError
		if _, err = again.open().TryAcquire(l.Context(), "n"); !errors.As(err, &busy) || busy.Token != l.Token() {
			t.Errorf("told %v", err)
		}
		release(t, held)
		release(t, l)
	})
}

// TestJoinedDos run at the same time under one grant, and the lock is held until the outer Do ends.
func TestJoinedDos(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		const goroutines = 8
		err := c.Do(t.Context(), "n", func(ctx context.Context, outer *pglock.Lease) error {
			var all, inside sync.WaitGroup
			inside.Add(goroutines)
			for range goroutines {
				all.Go(func() {
					err := c.Do(ctx, "n", func(ctx context.Context, l *pglock.Lease) error {
						inside.Done()
						inside.Wait() // for all of them
						if l != outer {
							t.Errorf("token %d in the lease of %d", l.Token(), outer.Token())
						}
						return c.TryDo(ctx, "n", func(ctx context.Context, _ *pglock.Lease) error { return ctx.Err() }, pglock.WithJoin())
					}, pglock.WithJoin())
					check(t, err)
				})
			}
			all.Wait()
			if k, err := c.Get(ctx, "n"); err != nil || k.Token != outer.Token() || !k.Held() {
				t.Errorf("after the joined calls the table has %+v, %v", k, err)
			}
			return ctx.Err()
		}, pglock.WithJoin())
		check(t, err)
		f.empty("n")
	})
}

// TestDoReleasesOnPanicAndOnGoexit, also of a joined Do, which leaves the outer lease as it is.
func TestDoReleasesOnPanicAndOnGoexit(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		caught := func(fn func()) (got any) {
			defer func() { got = recover() }()
			fn()
			return nil
		}
		got := caught(func() {
			_ = c.Do(t.Context(), "n", func(ctx context.Context, outer *pglock.Lease) error {
				nested := func() {
					_ = c.Do(ctx, "n", func(context.Context, *pglock.Lease) error { panic("boom") }, pglock.WithJoin())
				}
				if got := caught(nested); got != "boom" || outer.Err() != nil {
					t.Errorf("recovered %v, the outer lease: %v", got, outer.Err())
				}
				nested()
				return nil
			})
		})
		if got != "boom" {
			t.Errorf("recovered %v", got)
		}
		f.empty("n")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { runtime.Goexit(); return nil })
		}()
		ends(t, "the end of the goroutine", done)
		f.empty("n")
	})
}

// TestWithJoin: fn runs under the lease that its context carries, which stays as it is. A lease that has
// ended is not joined, nor by a call whose context is done, and Acquire does not join.
func TestWithJoin(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(), f.open()
		outer := try(t, c, "n", pglock.WithTTL(time.Hour))
		state := f.left("n")
		ran := func(ctx context.Context, c *pglock.Client, opts ...pglock.LeaseOption) (token pglock.Token, err error) {
			err = c.TryDo(ctx, "n", func(_ context.Context, l *pglock.Lease) error { token = l.Token(); return nil }, append(opts, pglock.WithJoin())...)
			return token, err
		}
		for _, client := range []*pglock.Client{c, other} {
			if token, err := ran(outer.Context(), client, pglock.WithTTL(time.Hour)); err != nil || token != outer.Token() {
				t.Errorf("joined %d: %v", token, err)
			}
			fails(t, "TryAcquire", second(client.TryAcquire(outer.Context(), "n", pglock.WithJoin())), pglock.ErrHeldByCaller)
		}
		if now := f.left("n"); now != state {
			t.Errorf("joining has renewed the grant: %v left, before %v", now, state)
		}
		canceled, cancel := context.WithCancel(outer.Context())
		cancel()
		fails(t, "under a context that is done", second(ran(canceled, c)), context.Canceled, pglock.ErrNotAcquired)
		f.Expire("n", 0)
		fails(t, "the outer lease", outer.Extend(t.Context(), 2*time.Hour), pglock.ErrLost)
		for what, ctx := range map[string]context.Context{"a lost lease": context.WithoutCancel(outer.Context()), "none": t.Context()} {
			if token, err := ran(ctx, c); err != nil || token <= outer.Token() {
				t.Errorf("under %s: %d, %v", what, token, err)
			}
		}
	})
}

// TestANestedCallFailsAtOnce in every context that a lease has given out, for the same client
// and for another one of the same database and schema.
func TestANestedCallFailsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c, other := f.open(), f.open()
		l := try(t, c, "n")
		with, cancel := l.WithContext(t.Context())
		defer cancel()
		type key struct{}
		derived := context.WithValue(context.WithoutCancel(with), key{}, 1)
		inner, err := c.Acquire(derived, "another name")
		must(t, err)
		for _, ctx := range []context.Context{l.Context(), with, derived, inner.Context()} {
			refuses(ctx, t, c, l)
			refuses(ctx, t, other, l)
			if got, ok := pglock.FromContext(ctx, "n"); !ok || got != l {
				t.Errorf("FromContext: %v, %v", got, ok)
			}
		}
		if got, ok := pglock.FromContext(t.Context(), "n"); ok {
			t.Errorf("a context without a lease carries %v", got)
		}
		release(t, inner)
		release(t, l)
		// Released: it is an ordinary acquire, although the context still carries the lease.
		again, err := other.TryAcquire(derived, "n")
		must(t, err)
		if got, ok := pglock.FromContext(derived, "n"); !ok || got != l || got.Err() == nil {
			t.Errorf("FromContext after the release: %v, %v", got, ok)
		}
		release(t, again)
	})
}

// TestEveryWaiterTellsWhoHoldsTheLock: also those behind the head, which make no attempt.
func TestEveryWaiterTellsWhoHoldsTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		for name, holder := range map[string]*pglock.Client{"mine": c, "theirs": f.open()} {
			l := try(t, holder, name)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					_, err := c.Acquire(ctx, name)
					var busy *pglock.BusyError
					if !errors.As(err, &busy) || busy.Token != l.Token() || busy.Holder != l.Holder() || busy.ThisClient != (name == "mine") {
						t.Errorf("%s: told %v", name, err)
					}
				})
			}
			pgtest.Eventually(t, "all wait", func() bool {
				return pglock.Waiting(c, name) == 3 && (name == "mine" || pglock.HeadWaits(c, name))
			})
			cancel()
			wg.Wait()
			release(t, l)
		}
	})
}

// TestANestedAcquireOnADeadServer: whether another client's lease is of the same lock is not known.
// The acquire reports the failure.
func TestANestedAcquireOnADeadServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		l := try(t, f.open(), "n")
		proxy.Refuse(true)
		proxy.Sever()
		if _, err := c.TryAcquire(l.Context(), "n"); !errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("told %v", err)
		}
		proxy.Refuse(false)
		release(t, l)
	})
}
