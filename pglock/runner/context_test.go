package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestI3_GuardContextReadsTheClock: after a pause past the lease's deadline, the first call of Err
// reports the loss, although no timer has run yet.
func TestI3_GuardContextReadsTheClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	client := locktest.ClientOn(t, pool, pglock.WithTTL(time.Second), pglock.WithRenewEvery(0))
	for range 4 { // without reading the clock, the timer is first in about one round of two
		var lease *pglock.Lease
		err := runner.Guard(t.Context(), client, "m", func(ctx context.Context) error {
			locktest.WaitUntilPast(lease.Deadline())
			if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
				t.Errorf("past the deadline the function's context says %v, cause %v", err, context.Cause(ctx))
			}
			return nil
		}, runner.WithLeaseTo(func(l *pglock.Lease) { lease = l }))
		if !errors.Is(err, runner.ErrLost) {
			t.Errorf("Guard: %v", err)
		}
	}
}
