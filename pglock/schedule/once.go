package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// Once runs fn for the tick unless the tick was run. fn's context is done when ctx is done and when
// the lease is lost.
//
// Once returns nil if fn ran and returned nil, and the tick is recorded. It returns an error that
// wraps ErrDone if the tick was run before. If fn did not run, the error is that of Begin.
//
// If fn failed, the error is fn's, and the tick is recorded as run. Two cases leave the tick to
// another process: ctx was done, or the error is joined with ErrLost. If fn panics, the tick is
// recorded, and the panic continues.
func (j *Job) Once(ctx context.Context, tick time.Time, fn func(ctx context.Context, l *pglock.Lease) error) (err error) {
	if fn == nil {
		return invalidOption("function is nil: must be set")
	}
	r, err := j.Begin(ctx, tick)
	if err != nil {
		return err
	}
	defer func() { // without recover, so that a panic keeps its stack
		if err != nil && ctx.Err() != nil {
			err = joinErr(err, r.Abandon(ctx))
			return
		}
		err = joinErr(err, r.End(ctx))
	}()
	runCtx, stop := r.Context(ctx)
	defer stop()
	return fn(runCtx, r.lease)
}

// Every runs fn once per tick until ctx is done, and then returns ctx's cause. Ticks are the whole
// multiples of period, counted from the year 1 in UTC as time.Truncate does. Failures do not end
// the loop: they are logged as WithLogger says, and each result goes to the function of WithReport.
//
// Ticks run in order, starting after the last tick that was run. A tick may run late: because the
// tick before it took long, because its runner died, or because no process was up. A tick that is
// later than WithWait and later than period is skipped.
//
// Every returns ErrInvalidOption if fn is nil or period is shorter than a millisecond.
func (j *Job) Every(ctx context.Context, period time.Duration, fn func(ctx context.Context, l *pglock.Lease) error) error {
	if period < time.Millisecond {
		return invalidOption("period %v is too short: must be 1ms or more", period)
	}
	if fn == nil {
		return invalidOption("function is nil: must be set")
	}
	maxLate := max(period, j.cfg.wait)
	for tick := j.firstTick(ctx, period); ; tick = tick.Add(period) {
		if late := j.wallClock().Sub(tick); late > maxLate {
			tick = tick.Add(late.Truncate(period))
		}
		if !j.sleepUntil(ctx, tick) {
			return context.Cause(ctx)
		}
		err := j.Once(ctx, tick, fn)
		if ctx.Err() != nil && !errors.Is(err, pglock.ErrLost) {
			return context.Cause(ctx)
		}
		j.Report(tick, err)
	}
}

// firstTick returns the tick with which Every begins. If the last tick that was run is in the past,
// it is the one after that: a clock that is ahead must not skip ticks that slower clocks have not
// reached.
func (j *Job) firstTick(ctx context.Context, period time.Duration) time.Time {
	current := j.wallClock().Truncate(period)
	if last, err := j.lastTick(ctx); err != nil {
		j.Report(current, err)
	} else if last.Before(current) && !last.IsZero() {
		current = last.Truncate(period)
	}
	return current.Add(period)
}

// wallClock returns the time by the job's clock without a monotonic reading: ticks follow the wall
// clock, also after it is set.
func (j *Job) wallClock() time.Time { return j.cfg.now().Round(0) }

// sleepUntil returns true at the tick, and false if ctx is done first.
func (j *Job) sleepUntil(ctx context.Context, tick time.Time) bool {
	timer := time.NewTimer(tick.Sub(j.wallClock()))
	defer timer.Stop()
	select { // if both are ready, either is right: Once checks ctx
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
