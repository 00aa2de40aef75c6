package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

const (
	// clockStep is the longest sleep between two looks at the clock. A timer counts monotonic time,
	// which stops while a machine is suspended and does not follow a clock that is set.
	clockStep = 5 * time.Second

	// minRetry and maxRetry bound the pauses between attempts to begin a tick that could not begin,
	// for example because the database is unreachable.
	minRetry, maxRetry = time.Second, time.Minute
)

// Run runs fn once for each tick of s, and of Trigger, until ctx is done, and then returns ctx's cause. It returns
// pglock.ErrClosed if the client is closed, and nil after the last tick, if there is one.
//
// Failures do not end the loop. A tick that could not begin because the database was unreachable,
// or whose lease was lost, is tried again until the next tick is due. Of the failures to begin, the
// first is logged and reported.
//
// Ticks run in order, beginning with the tick after the last one that was run, or with the first
// tick after the call if none ever was. See the package for ticks that were missed.
//
// The error wraps pglock.ErrInvalidOption if fn is nil or s is invalid.
func (j *Job) Run(ctx context.Context, s Schedule, fn Func) error {
	if fn == nil {
		return errs.InvalidOption("schedule", "function is nil: must be set")
	}
	if err := checkSchedule(s, j.wallClock()); err != nil {
		return err
	}
	if err := j.checkRetry(s, s.Next(j.wallClock())); err != nil {
		return err
	}
	defer j.expect(ctx, time.Time{})
	tick, err := j.firstTick(ctx, s)
	for ; err == nil && !tick.IsZero(); tick = s.Next(tick) {
		if now := j.wallClock(); now.Sub(tick) > j.cfg.wait {
			if last := lastTick(s, now); last.After(tick) {
				j.observeSkip(ctx, tick)
				tick = last
			}
		}
		j.expect(ctx, tick)
		if err = j.await(ctx, s, tick, fn); err == nil {
			err = j.runTick(ctx, s, claimOf(s, tick), fn)
		}
	}
	return err
}

// runTick runs a tick and reports its result. A tick that could not begin, or whose lease was lost,
// is tried again until the next tick is due. It returns an error if the loop must end.
func (j *Job) runTick(ctx context.Context, s Schedule, c claim, fn Func) error {
	return j.again(ctx, c.next, func(first bool) (done bool, err error) {
		began, err := j.once(ctx, &c, j.waitFor(s, c.tick), fn)
		lost := errors.Is(err, pglock.ErrLost)
		switch {
		case errors.Is(err, pglock.ErrClosed):
			return false, err
		case ctx.Err() != nil && !lost:
			return false, context.Cause(ctx)
		case first || began || isFinal(err):
			j.report(c.tick, err)
		}
		return began && !lost || isFinal(err), nil
	})
}

// again calls try until it is done or has an error, with pauses that double. If the next try would
// come after limit, and that is not zero, again gives up without an error.
func (j *Job) again(ctx context.Context, limit time.Time, try func(first bool) (done bool, err error)) error {
	pause := minRetry
	for first := true; ; first = false {
		if done, err := try(first); done || err != nil {
			return err
		}
		until := j.wallClock().Add(pause)
		switch {
		case !limit.IsZero() && !limit.After(until):
			return nil
		case !j.sleepUntil(ctx, until):
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxRetry)
	}
}

// isFinal reports whether another attempt to begin the same tick makes no sense. An attempt that
// ends with ErrNotAcquired has waited until the next tick, or as long as WithWait says.
func isFinal(err error) bool {
	return err == nil || Done(err) || errors.Is(err, ErrMissed) || errors.Is(err, pglock.ErrInvalidOption) ||
		errors.Is(err, pglock.ErrNotAcquired) && !errors.Is(err, pglock.ErrUnavailable)
}

// firstTick returns the tick with which Run begins: the one after the last tick that was run, also
// if this machine's clock is ahead and slower clocks have not reached it. It tries until the
// database answers, and reports the first failure.
func (j *Job) firstTick(ctx context.Context, s Schedule) (tick time.Time, err error) {
	began := j.wallClock()
	err = j.again(ctx, time.Time{}, func(first bool) (done bool, err error) {
		known, err := j.read(ctx)
		if err == nil && known.last.IsZero() {
			err = j.register(ctx)
		}
		switch {
		case err == nil && (known.last.IsZero() || known.last.After(began)):
			tick = s.Next(began)
		case err == nil:
			tick = s.Next(known.last)
		case errors.Is(err, pglock.ErrClosed):
			return false, err
		case ctx.Err() == nil && first:
			j.report(began, err)
		}
		return err == nil, nil
	})
	return tick, err
}

// waitFor returns how long a tick waits while another process runs it or an earlier one: for the
// time of WithWait, or until the next tick is due.
func (j *Job) waitFor(s Schedule, tick time.Time) time.Duration {
	if j.cfg.waitSet {
		return j.cfg.wait
	}
	next := s.Next(tick)
	if next.IsZero() {
		return maxLookback
	}
	return max(j.cfg.wait, next.Sub(j.wallClock()))
}

// wallClock returns the time by the job's clock without a monotonic reading: ticks follow the wall
// clock, also after it is set.
func (j *Job) wallClock() time.Time { return j.cfg.now().Round(0) }

// sleepUntil returns true when the job's clock shows that time, and false if ctx is done first.
func (j *Job) sleepUntil(ctx context.Context, until time.Time) bool {
	for {
		timer := time.NewTimer(min(until.Sub(j.wallClock()), clockStep))
		select { // if both are ready, either is right: the next call checks ctx
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		if !until.After(j.wallClock()) {
			return true
		}
	}
}
