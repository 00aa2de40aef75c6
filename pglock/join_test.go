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
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

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
				check(t, err)
			})
		}
		all.Wait()
		if k, err := f.Get(ctx, "n"); err != nil || k.Token != outer.Token() || !k.Held() {
			t.Errorf("after the joined calls the table has %+v, %v", k, err)
		}
		return ctx.Err()
	}, pglock.WithJoin())
	check(t, err)
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
					check(t, tc.end(f, c, l))
					select {
					case <-ctx.Done():
					case <-time.After(pgtest.Patience):
						t.Error("the joined function's context is not done")
					}
					if !errors.Is(context.Cause(ctx), tc.want) {
						t.Errorf("it ended by %v", context.Cause(ctx))
					}
					return nil
				}, pglock.WithJoin())
				return nil
			}, pglock.WithTTL(5*time.Second))
			if !errors.Is(joined, tc.want) {
				t.Errorf("the joined Do: %v", joined)
			}
			if released := name == "released"; released != (outer == nil) || !released && !errors.Is(outer, tc.want) {
				t.Errorf("the outer Do: %v", outer)
			}
		})
	}
}

// TestDoReleasesOnPanicAndOnGoexit, also of a joined Do, which leaves the outer lease as it is.
func TestDoReleasesOnPanicAndOnGoexit(t *testing.T) {
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
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { runtime.Goexit(); return nil })
	}()
	ends(t, "the end of the goroutine", done)
	f.free("n")
}

// TestWithJoin: fn runs under the lease that its context carries, which stays as it is. A lease that has
// ended is not joined, nor by a call whose context is done, and Acquire does not join.
func TestWithJoin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, other := f.open(), f.open()
	outer := try(t, c, "n", pglock.WithTTL(time.Hour))
	state := f.version("n")
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
	if now := f.version("n"); now != state {
		t.Errorf("joining has written: version %d, was %d", now, state)
	}
	canceled, cancel := context.WithCancel(outer.Context())
	cancel()
	fails(t, "under a context that is done", second(ran(canceled, c)), context.Canceled, pglock.ErrNotAcquired)
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity'")
	fails(t, "the outer lease", outer.Extend(t.Context(), 2*time.Hour), pglock.ErrLost)
	for what, ctx := range map[string]context.Context{"a lost lease": context.WithoutCancel(outer.Context()), "none": t.Context()} {
		if token, err := ran(ctx, c); err != nil || token <= outer.Token() {
			t.Errorf("under %s: %d, %v", what, token, err)
		}
	}
}

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

// TestANestedCallFailsAtOnce in every context that a lease has given out, for the same client
// and for another one of the same database and schema.
func TestANestedCallFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
}

// TestALockOfTheSameNameElsewhereIsAnotherLock: another schema, or another database with the same
// schema and even the same token and holder.
func TestALockOfTheSameNameElsewhereIsAnotherLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n", pglock.WithHolder("h"))
	release(t, nested(t, newFixture(t).open(), l))

	elsewhere := fixture{t, pgtest.PoolOn(t, pgtest.Database(t)), f.schema}
	must(t, migrations.Up(t.Context(), elsewhere.pool, migrations.WithSchema(f.schema)))
	c, err := pglock.Open(t.Context(), elsewhere.pool, pglock.WithSchema(f.schema))
	must(t, err)
	defer c.Close(t.Context())
	release(t, nested(t, c, l))
	// Held there by another holder, whose row looks the same.
	elsewhere.sql(`UPDATE pglock.distributed_locks SET token = $1, holder = 'h',
		expires_at = clock_timestamp() + interval '1 hour'`, int64(l.Token()))
	_, err = c.TryAcquire(l.Context(), "n")
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Token != l.Token() {
		t.Errorf("told %v", err)
	}
	release(t, l)
}

// nested acquires the lock of l through c under the context of l.
func nested(t *testing.T, c *pglock.Client, l *pglock.Lease) *pglock.Lease {
	t.Helper()
	got, err := c.TryAcquire(l.Context(), l.Name())
	must(t, err)
	return got
}

// TestEveryWaiterTellsWhoHoldsTheLock: also those behind the head, which make no attempt.
func TestEveryWaiterTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
}

// TestANestedAcquireOnADeadServer: whether another client's lease is of the same lock is not known.
// The acquire reports the failure.
func TestANestedAcquireOnADeadServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
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
}
