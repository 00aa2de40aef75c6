package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

// TestTheHolderLearnsOfRequestsAndRevocations, by a notification or by its next renewal, also when others
// have held the lock since. The next waiter has the lock at once, and is not asked.
func TestTheHolderLearnsOfRequestsAndRevocations(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		client []pglock.Option
		notify bool
	}{
		{"by notification", []pglock.Option{pglock.WithTTL(time.Hour)}, true},
		{"by notification, without renewal", []pglock.Option{pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0)}, true},
		{"by renewal", []pglock.Option{pglock.WithTTL(3 * time.Second), pglock.WithPollOnly()}, false},
	} {
		bubbles(t, tc.name, func(t *testing.T, f fake) {
			c, operator := f.open(tc.client...), f.open()
			l := try(t, c, "n", pglock.WithHolder("old"))
			requested := l.ReleaseRequested()
			synctest.Wait()
			must(t, operator.RequestRelease(t.Context(), "n", l.Token(), "deploy"))
			if k := get(t, operator, "n"); !k.Held() || !k.ReleaseRequested || k.ReleaseReason != "deploy" {
				t.Errorf("the lock: %+v", k)
			}
			ends(t, "the holder learns of the request", requested)
			if reason := l.ReleaseReason(); reason != "deploy" || l.Err() != nil {
				t.Errorf("the reason %q, the lease %v", reason, l.Err())
			}
			got := f.waits(f.open().Lock("n"))
			must(t, operator.Revoke(t.Context(), "n", l.Token(), "maintenance\n"))
			fails(t, "a guard after the revocation", fencing.Check(t.Context(), f.begin(), l.Fence()), fencing.ErrStale)
			next := next(t, got)
			if k := get(t, operator, "n"); k.Token != next.Token() || !k.Held() || k.ReleaseRequested {
				t.Errorf("afterwards: %+v", k)
			}
			check(t, next.Extend(t.Context(), time.Hour))
			release(t, next)
			for range 5 {
				release(t, acquire(t, operator, "n"))
			}
			ends(t, "the holder learns of the revocation", l.Done())
			var lost *pglock.LostError
			if err := l.Err(); !errors.As(err, &lost) || !errors.Is(err, pglock.ErrRevoked) || !errors.Is(err, pglock.ErrLost) ||
				!strings.Contains(err.Error(), `"maintenance\n"`) || strings.Contains(err.Error(), "\n") || lost.Token != l.Token() {
				t.Errorf("the lease has ended by %v", err)
			}
			fails(t, "release", l.Release(t.Context()), pglock.ErrRevoked)
			check(t, operator.Revoke(t.Context(), "n", l.Token(), "again"))
		})
	}
}

// TestOnlyClientsRevoke: a role that may write as a holder can neither revoke nor request.
func TestOnlyClientsRevoke(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := try(t, f.open(), "n")
	defer release(t, l)
	writer := pgtest.WriterPool(t, f.pool, f.schema)
	for _, statement := range []string{pglock.RevokeGrantSQL, pglock.RequestReleaseSQL} {
		_, err := writer.Exec(t.Context(), f.named(statement), "n", int64(l.Token()), "r", "channel", true)
		if pgtx.SQLState(err) != "42501" { // insufficient_privilege
			t.Errorf("a writer: %v", err)
		}
	}
	if k, err := f.open().Get(t.Context(), "n"); err != nil || !k.Held() || k.ReleaseRequested {
		t.Errorf("afterwards: %+v, %v", k, err)
	}
}

// TestCallsThatEndTheirOwnContext: the work's context carries the lease that the call ends, so the call ends
// its own context before its answer. It reports its own result, and the lock is free.
func TestCallsThatEndTheirOwnContext(t *testing.T) {
	t.Parallel()
	for what, call := range map[string]func(context.Context, *pglock.Client, *pglock.Lease) error{
		"Revoke": func(ctx context.Context, c *pglock.Client, l *pglock.Lease) error {
			return c.Revoke(ctx, l.Name(), l.Token(), "moved")
		},
		"RequestRelease": func(ctx context.Context, c *pglock.Client, l *pglock.Lease) error {
			var released sync.WaitGroup
			defer released.Wait()
			released.Go(func() {
				<-l.ReleaseRequested()
				check(t, l.Release(context.Background()))
			})
			synctest.Wait()
			return c.RequestRelease(ctx, l.Name(), l.Token(), "moved")
		},
		"Release": func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) },
		"Close":   func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error { return c.Close(ctx) },
	} {
		bubbles(t, what, func(t *testing.T, f fake) {
			for i, derive := range []func(*pglock.Lease) (context.Context, context.CancelFunc){
				func(l *pglock.Lease) (context.Context, context.CancelFunc) { return l.Context(), func() {} },
				func(l *pglock.Lease) (context.Context, context.CancelFunc) { return l.WithContext(t.Context()) },
				func(l *pglock.Lease) (context.Context, context.CancelFunc) {
					return context.WithTimeout(l.Context(), time.Hour)
				},
			} {
				c := f.open(pglock.WithTTL(time.Hour))
				l := try(t, c, fmt.Sprint(what, i))
				ctx, cancel := derive(l)
				defer cancel()
				if err := call(ctx, c, l); err != nil || l.Err() == nil {
					t.Errorf("context %d: %v, the lease: %v", i, err, l.Err())
				}
				f.empty(l.Name())
			}
		})
	}
}

// TestRevokeIsRefused for grants that are not current, and for arguments that are wrong. Nothing is
// changed then.
func TestRevokeIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		old := try(t, c, "n")
		release(t, old)
		for _, current := range []fencing.Token{old.Token(), old.Token() + 1} {
			for what, call := range map[string]func(context.Context, string, fencing.Token, string) error{
				"revoke": c.Revoke, "request": c.RequestRelease,
			} {
				var stale *fencing.StaleError
				err := call(t.Context(), "n", old.Token(), "r")
				if !errors.As(err, &stale) || stale.Token != old.Token() || stale.Current != current || stale.Resource != "n" {
					t.Errorf("%s of a grant that has ended: %v", what, err)
				}
				if err := call(t.Context(), "other", 1, "r"); !errors.Is(err, pglock.ErrNotFound) {
					t.Errorf("%s without a row: %v", what, err)
				}
				if err := call(t.Context(), "", 1, "r"); !errors.Is(err, pglock.ErrInvalidOption) {
					t.Errorf("%s without a name: %v", what, err)
				}
				for _, err := range []error{
					call(t.Context(), "n", 0, "r"), call(t.Context(), "n", 1, "\x00"), call(t.Context(), "n", 1, strings.Repeat("r", 513)),
				} {
					if !errors.Is(err, pglock.ErrInvalidOption) {
						t.Errorf("%s with a wrong argument: %v", what, err)
					}
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				why := errors.New("enough")
				cancel(why)
				if err := call(ctx, "n", old.Token(), "r"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
					t.Errorf("%s under a context that has ended: %v", what, err)
				}
			}
			if current == old.Token() {
				defer release(t, try(t, c, "n"))
			}
		}
		if k, err := c.Get(t.Context(), "n"); err != nil || !k.Held() || k.ReleaseRequested {
			t.Errorf("afterwards: %+v, %v", k, err)
		}
	})
}

// TestAReleaseRequestReachesTheHolder: before and after it, by any number of callers. The lease is
// held until the holder releases it. The first reason counts.
func TestAReleaseRequestReachesTheHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l, unasked := try(t, c, "n"), try(t, c, "unasked")
		defer release(t, unasked)
		early := l.ReleaseRequested()
		notDone(t, "the channel is closed before the request", early)
		if reason := l.ReleaseReason(); reason != "" {
			t.Errorf("reason before the request: %q", reason)
		}
		var all sync.WaitGroup
		firsts := make(chan bool, 10)
		for range cap(firsts) {
			all.Go(func() { firsts <- pglock.RequestRelease(l, "deploy") })
		}
		all.Wait()
		close(firsts)
		n := 0
		for first := range firsts {
			if first {
				n++
			}
		}
		if n != 1 || pglock.RequestRelease(l, "another") {
			t.Errorf("%d first requests", n)
		}
		ends(t, "the request", early)
		ends(t, "the request, seen later", l.ReleaseRequested())
		if reason := l.ReleaseReason(); reason != "deploy" {
			t.Errorf("reason: %q", reason)
		}
		check(t, l.Err())
		notDone(t, "another lease was requested", unasked.ReleaseRequested())
		release(t, l)
		if l = try(t, c, "n"); !pglock.RequestRelease(l, "again") {
			t.Error("the next lease of the name can't be requested")
		}
		ends(t, "a request that nobody waited for", l.ReleaseRequested())
		release(t, l)
		l = try(t, c, "n")
		release(t, l)
		if pglock.RequestRelease(l, "late") {
			t.Error("the request was delivered to a lease that has ended")
		}
		notDone(t, "an ended lease is requested", l.ReleaseRequested())
	})
}

// TestAListenerIsNeeded by a holder that waits for a request, until it has one or its lease ends, and by a
// watcher until it stops.
func TestAListenerIsNeeded(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		needed := func(want bool, when string) {
			t.Helper()
			if pglock.NeedsListener(c) != want {
				t.Errorf("%s: a listener is needed: %v", when, !want)
			}
		}
		l := try(t, c, "n")
		needed(false, "a holder")
		l.ReleaseRequested()
		needed(true, "a holder that waits for a request")
		must(t, c.RequestRelease(t.Context(), "n", l.Token(), "r"))
		<-l.ReleaseRequested()
		needed(false, "it has the request")
		release(t, l)
		l = try(t, c, "n")
		l.ReleaseRequested()
		release(t, l)
		needed(false, "its lease has ended")
		for _, err := range c.Watch(t.Context(), "n") {
			check(t, err)
			needed(true, "a watcher")
			break
		}
		needed(false, "the watcher has stopped")
	})
}
