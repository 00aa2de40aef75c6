package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestI3_ContextsReadTheClock: after a pause past the deadline the first call of Err or Done of the
// lease's contexts reports the loss, although no timer has fired yet.
func TestI3_ContextsReadTheClock(t *testing.T) {
	t.Parallel()
	byErr := func(ctx context.Context) bool { return ctx.Err() != nil }
	byDone := func(ctx context.Context) bool {
		select { // the first look
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
	own := func(l *pglock.Lease) (context.Context, context.CancelFunc) { return l.Context(), func() {} }
	derived := func(l *pglock.Lease) (context.Context, context.CancelFunc) {
		return l.WithContext(context.Background())
	}
	for name, c := range map[string]struct {
		of   func(l *pglock.Lease) (context.Context, context.CancelFunc)
		look func(ctx context.Context) bool
	}{
		"own, Err": {own, byErr}, "own, Done": {own, byDone}, "derived, Err": {derived, byErr}, "derived, Done": {derived, byDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newFixture(t).open()
			for range 4 { // without reading the clock, in about every second round the timer has not fired
				l := try(t, client, "n", pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
				ctx, cancel := c.of(l)
				deadline := l.Deadline()
				<-time.After(time.Until(deadline) - 10*time.Millisecond)
				for time.Now().Before(deadline) {
					// Spin: the call must come before a timer.
				}
				if ended := c.look(ctx); !ended || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
					t.Errorf("done: %v, cause %v", ended, context.Cause(ctx))
				}
				cancel()
				pgtest.Eventually(t, 10*time.Second, "the server's expiry", func() bool {
					k, err := client.Get(t.Context(), "n")
					return err == nil && !k.Held()
				})
			}
		})
	}
}

type valueKey struct{}

// TestWithContext ends the context by each of its two parents. The lease is not affected.
func TestWithContext(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	l := try(t, c, "n")
	why := errors.New("the service is stopped")
	parent, stop := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, "v"))
	ctx, cancel := l.WithContext(parent)
	defer cancel()
	if ctx.Err() != nil || ctx.Value(valueKey{}) != "v" {
		t.Errorf("at first: %v, value %v", ctx.Err(), ctx.Value(valueKey{}))
	}
	child, cancelChild := context.WithCancel(ctx)
	defer cancelChild()
	stop(why)
	within(t, time.Second, "the parent's end", ctx.Done())
	within(t, time.Second, "the parent's end, in a child", child.Done())
	if !errors.Is(context.Cause(ctx), why) || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("the parent ended: %v, cause %v", ctx.Err(), context.Cause(ctx))
	}

	ctx, cancel = l.WithContext(t.Context())
	cancel()
	if !errors.Is(ctx.Err(), context.Canceled) || l.Err() != nil {
		t.Errorf("cancelled: %v, the lease %v", ctx.Err(), l.Err())
	}

	ctx, cancel = l.WithContext(t.Context())
	defer cancel()
	child, cancelChild = context.WithCancel(ctx)
	defer cancelChild()
	release(t, l)
	within(t, time.Second, "the lease's end, in a child", child.Done())
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), pglock.ErrReleased) || !errors.Is(context.Cause(child), pglock.ErrReleased) {
		t.Errorf("released: %v, cause %v", ctx.Err(), context.Cause(ctx))
	}
	late, cancel := l.WithContext(t.Context())
	defer cancel()
	if late.Err() == nil {
		t.Error("made after the lease's end: not done")
	}
}
