package gooselock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestI3_StopOnLossReadsTheClock: after a pause past the lease's deadline, the first call of Err
// reports the loss, although no timer has run yet.
func TestI3_StopOnLossReadsTheClock(t *testing.T) {
	t.Parallel()
	locker, err := NewLocker(locktest.Client(t, pgtest.Database(t), pglock.WithTTL(time.Second), pglock.WithRenewEvery(0)), "m")
	locktest.OK(t, err)
	for range 4 { // without reading the clock, the timer is first in about one round of two
		ctx, stop := locker.StopOnLoss(t.Context())
		locktest.OK(t, locker.Lock(ctx, nil))
		locktest.WaitUntilPast(locker.lease.Load().Deadline())
		if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
			t.Errorf("past the deadline the context says %v, cause %v", err, context.Cause(ctx))
		}
		if err := locker.Unlock(ctx, nil); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		stop()
	}
}

// TestStopOnLossOutlivesUnlock: a release does not end the context of the run, under which goose may
// acquire the lock again. It ends with a client that is closed while goose still migrates, because
// that releases the lock.
func TestStopOnLossOutlivesUnlock(t *testing.T) {
	t.Parallel()
	client := locktest.Client(t, pgtest.Database(t))
	locker, err := NewLocker(client, "m")
	locktest.OK(t, err)
	ctx, stop := locker.StopOnLoss(t.Context())
	defer stop()
	for range 2 {
		locktest.OK(t, locker.Lock(ctx, nil))
		locktest.OK(t, locker.Unlock(ctx, nil))
		if err := ctx.Err(); err != nil {
			t.Errorf("after Unlock the context says %v", context.Cause(ctx))
		}
	}
	locktest.OK(t, locker.Lock(ctx, nil))
	locktest.OK(t, client.Close(t.Context()))
	if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrClosed) {
		t.Errorf("after the client's end the context says %v, cause %v", err, context.Cause(ctx))
	}
}
