package ticks

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// Once runs fn for that tick, unless it was run. fn's context is done when ctx is, and when the lease is lost.
//
// It returns nil if fn ran, returned nil, and the tick is recorded; ErrDone (wrapped) if the tick was run before.
// Otherwise the error is fn's, which leaves the tick recorded unless ctx was done and unless it is joined with ErrLost; or
// that of Begin, and fn did not run. When fn panics the tick is recorded, and the panic goes on.
func (j *Job) Once(ctx context.Context, tick time.Time, fn func(ctx context.Context, l *pglock.Lease) error) (err error) {
	if fn == nil {
		return invalidOption("the function is nil")
	}
	r, err := j.Begin(ctx, tick)
	if err != nil {
		return err
	}
	defer func() { // not by recover: a panic keeps its stack
		if err != nil && ctx.Err() != nil {
			err = joined(err, r.Abandon(ctx))
			return
		}
		err = joined(err, r.End(ctx))
	}()
	during, stop := r.Context(ctx)
	defer stop()
	return fn(during, r.lease)
}

// Context returns a context that is done when parent is, when the lease is lost, or when the run has ended. Its cause
// tells which.
func (r *Run) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	unlink := context.AfterFunc(r.lease.Context(), func() { cancel(r.lease.Err()) })
	return ctx, func() {
		unlink()
		cancel(nil)
	}
}

// Every runs fn once per tick, at the whole multiples of period (counted from the year 1, in UTC, as
// time.Truncate does), until ctx is done; then it returns ctx's cause. What Once returns is told to the function given
// by WithReport, and nothing ends the loop but ctx.
//
// Ticks are run in order, from the one after the last that was run. One that is late, because the one before took long,
// its runner died, or nobody was there, is run late; if it is later than WithWait, or than a period if that is more, it
// is passed over.
func (j *Job) Every(ctx context.Context, period time.Duration, fn func(ctx context.Context, l *pglock.Lease) error) error {
	if period < time.Millisecond {
		return invalidOption("a period of %v, the shortest is a millisecond", period)
	}
	if fn == nil {
		return invalidOption("the function is nil")
	}
	latest := max(period, j.cfg.wait)
	// Round(0) takes the wall clock: it is the ticks' own, also when it is set.
	first := j.cfg.now().Round(0).Truncate(period)
	if last, err := j.last(ctx); err != nil {
		j.cfg.report(first, err)
	} else if last.Before(first) && !last.IsZero() {
		// A clock that is ahead must not pass over what slower ones have not come to yet.
		first = last.Truncate(period)
	}
	for tick := first.Add(period); ; tick = tick.Add(period) {
		if late := j.cfg.now().Round(0).Sub(tick); late > latest {
			tick = tick.Add(late.Truncate(period))
		}
		if !j.sleepUntil(ctx, tick) {
			return context.Cause(ctx)
		}
		err := j.Once(ctx, tick, fn)
		if ctx.Err() != nil && !errors.Is(err, pglock.ErrLost) {
			return context.Cause(ctx)
		}
		j.cfg.report(tick, err)
	}
}

// sleepUntil returns false if ctx ends first.
func (j *Job) sleepUntil(ctx context.Context, tick time.Time) bool {
	timer := time.NewTimer(tick.Sub(j.cfg.now().Round(0)))
	defer timer.Stop()
	// If both are ready, Once finds ctx done.
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
