package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestANestedDoFailsAtOnce: it would wait for itself.
func TestANestedDoFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	never := func(context.Context, *pglock.Lease) error {
		t.Error("the nested function ran")
		return nil
	}
	err := f.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		if got, ok := pglock.FromContext(ctx, "n"); !ok || got != l {
			t.Errorf("the function's context carries %v, %v", got, ok)
		}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second) // without the check it waits
		defer cancel()
		for what, err := range map[string]error{
			"Do": f.Do(ctx, "n", never), "TryDo": f.TryDo(ctx, "n", never),
		} {
			var held *pglock.HeldError
			if !errors.As(err, &held) || held.Token != l.Token() || !errors.Is(err, pglock.ErrHeldByCaller) || errors.Is(err, pglock.ErrNotAcquired) {
				t.Errorf("%s: told %v", what, err)
			}
		}
		return l.Err()
	})
	if err != nil {
		t.Error(err)
	}
	if _, ok := pglock.FromContext(t.Context(), "n"); ok {
		t.Error("a context carries a lease that it was not given")
	}
	f.free("n")
}

// TestJoinedDos run at the same time under one grant, and the lock is held until the outer Do ends.
func TestJoinedDos(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	const goroutines = 8
	err := f.Do(t.Context(), "n", func(ctx context.Context, outer *pglock.Lease) error {
		var all, inside sync.WaitGroup
		inside.Add(goroutines)
		for range goroutines {
			all.Go(func() {
				err := f.Do(ctx, "n", func(ctx context.Context, l *pglock.Lease) error {
					inside.Done()
					inside.Wait() // for all of them
					if l != outer {
						t.Errorf("token %d in the lease of %d", l.Token(), outer.Token())
					}
					return f.TryDo(ctx, "n", func(ctx context.Context, _ *pglock.Lease) error { return ctx.Err() }, pglock.WithJoin())
				}, pglock.WithJoin())
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if k, err := f.Get(ctx, "n"); err != nil || k.Token != outer.Token() || !k.Held() {
			t.Errorf("after the joined calls the table has %+v, %v", k, err)
		}
		return ctx.Err()
	}, pglock.WithJoin())
	if err != nil {
		t.Error(err)
	}
	f.free("n")
}

// TestTheOuterLeaseEndsUnderAJoinedDo: the joined work is told, by its context and by Do's error.
func TestTheOuterLeaseEndsUnderAJoinedDo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(f app, c *pglock.Client, outer *pglock.Lease) error
		want error
	}{
		"released": {func(_ app, _ *pglock.Client, outer *pglock.Lease) error {
			return outer.Release(context.Background())
		}, pglock.ErrReleased},
		"lost":   {func(f app, _ *pglock.Client, _ *pglock.Lease) error { f.steal(); return nil }, pglock.ErrLost},
		"closed": {func(_ app, c *pglock.Client, _ *pglock.Lease) error { return c.Close(context.Background()) }, pglock.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newApp(t)
			c := f.openOn(f.pool)
			var joined error
			outer := c.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
				joined = c.Do(ctx, "n", func(ctx context.Context, _ *pglock.Lease) error {
					if err := tc.end(f, c, l); err != nil {
						t.Error(err)
					}
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Second):
						t.Error("the joined function's context is not done")
					}
					if !errors.Is(context.Cause(ctx), tc.want) {
						t.Errorf("it ended by %v", context.Cause(ctx))
					}
					return nil
				}, pglock.WithJoin())
				return nil
			}, pglock.WithTTL(600*time.Millisecond))
			if !errors.Is(joined, tc.want) {
				t.Errorf("the joined Do: %v", joined)
			}
			if released := name == "released"; released != (outer == nil) {
				t.Errorf("the outer Do: %v", outer)
			}
		})
	}
}

// TestAPanicInAJoinedDo passes, and the lock is released when it passes the outer Do.
func TestAPanicInAJoinedDo(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	caught := func(fn func()) (got any) {
		defer func() { got = recover() }()
		fn()
		return nil
	}
	got := caught(func() {
		_ = f.Do(t.Context(), "n", func(ctx context.Context, outer *pglock.Lease) error {
			nested := func() {
				_ = f.Do(ctx, "n", func(context.Context, *pglock.Lease) error { panic("boom") }, pglock.WithJoin())
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
	f.free("n")
}

// TestWithJoin: fn runs under the lease that its context carries, which stays as it is. A lease that has
// ended is not joined, nor by a call whose context is done, and Acquire does not join.
func TestWithJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	outer := try(t, c, "n", pglock.WithTTL(300*time.Millisecond), pglock.WithRenewEvery(0))
	state := f.version("n")
	ran := func(ctx context.Context, c *pglock.Client, opts ...pglock.LeaseOption) (token pglock.Token, err error) {
		err = c.TryDo(ctx, "n", func(_ context.Context, l *pglock.Lease) error { token = l.Token(); return nil }, append(opts, pglock.WithJoin())...)
		return token, err
	}
	for _, client := range []*pglock.Client{c, other} {
		if token, err := ran(outer.Context(), client, pglock.WithTTL(time.Hour)); err != nil || token != outer.Token() {
			t.Errorf("joined %d: %v", token, err)
		}
		if _, err := client.TryAcquire(outer.Context(), "n", pglock.WithJoin()); !errors.Is(err, pglock.ErrHeldByCaller) {
			t.Errorf("TryAcquire: %v", err)
		}
	}
	if now := f.version("n"); now != state {
		t.Errorf("joining has written: version %d, was %d", now, state)
	}
	canceled, cancel := context.WithCancel(outer.Context())
	cancel()
	if _, err := ran(canceled, c); !errors.Is(err, context.Canceled) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("under a context that is done: %v", err)
	}
	within(t, 10*time.Second, "the loss", outer.Done())
	pgtest.Eventually(t, 10*time.Second, "the next grant", func() bool {
		token, err := ran(context.WithoutCancel(outer.Context()), c)
		return err == nil && token > outer.Token()
	})
	if token, err := ran(t.Context(), c); err != nil || token <= outer.Token() {
		t.Errorf("without a lease: %d, %v", token, err)
	}
}
