package schedule_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestI3_RunContextChecksTheClock: after a pause that lasts past the lease's deadline, the first
// look at the run's context reports the loss, although no timer has run yet.
func TestI3_RunContextChecksTheClock(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.jobOf(f.client(pglock.WithRenewEvery(0)), schedule.WithTTL(time.Second))
	for range 4 { // without a look at the clock, the timer has run in about half of the rounds
		err := job.Once(t.Context(), time.Now(), func(ctx context.Context, l *pglock.Lease) error {
			locktest.WaitUntilPast(l.Deadline())
			if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
				t.Errorf("past the deadline the run's context says %v, cause %v", err, context.Cause(ctx))
			}
			return nil
		})
		if !errors.Is(err, pglock.ErrLost) {
			t.Errorf("Once: %v", err)
		}
	}
}
