package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// Func is the work of a job. Its context is done when the context of the call is done and when the
// lease is lost. Guard writes that must not come late with the lease.
type Func = func(ctx context.Context, l *pglock.Lease) error

// Once runs fn for the tick unless the tick was run.
//
// Once returns nil if fn ran and returned nil, and the tick is recorded. It returns an error that
// wraps ErrDone if the tick was run before. If fn did not run, the error is that of Begin.
//
// If fn failed, the error is fn's, and the tick is recorded as run, unless WithRetry repeats it: then
// Once returns the result of the last attempt, or ErrDone if another process has made it. Two cases
// leave the tick to another process: ctx was done, or the error is joined with pglock.ErrLost. A
// panic is a failure, and continues, so that only another process repeats the run.
func (j *Job) Once(ctx context.Context, tick time.Time, fn Func) error {
	_, err := j.once(ctx, &claim{tick: tick}, j.cfg.wait, fn)
	return err
}

// OncePer runs fn unless a run began less than period ago by the database's clock, which Once,
// RunDue and Run count too: see BeginPer. Its errors are those of Once. A process that must run the
// job at given times uses Run or RunDue instead.
func (j *Job) OncePer(ctx context.Context, period time.Duration, fn Func) error {
	_, err := j.once(ctx, &claim{period: period}, j.cfg.wait, fn)
	return err
}

// RunDue runs fn for the tick of s that is due unless the tick was run: see Due. Call it when a
// timer of your own fires: that of a scheduler, of a crontab or of a Kubernetes CronJob. A tick of
// a time when no process was up is run by the next call, until the tick after it is due: see
// WithMaxLate.
//
// Its errors are those of Once, also logged and reported as Run does. If no tick was ever due, the
// error wraps ErrDone.
func (j *Job) RunDue(ctx context.Context, s Schedule, fn Func) error {
	c, err := j.due(s)
	if err != nil {
		return err
	}
	j.expect(ctx, c.tick)
	_, err = j.once(ctx, &c, j.waitFor(s, c.tick), fn)
	if ctx.Err() == nil || err == nil || errors.Is(err, pglock.ErrLost) { // otherwise another process runs the tick
		j.report(c.tick, err)
	}
	return err
}

type tickKey struct{}

// TickFromContext returns the tick that a Func runs, from its context, and reports false for any
// other context. With OncePer it is the time of the run by the database's clock.
func TickFromContext(ctx context.Context) (tick time.Time, ok bool) {
	tick, ok = ctx.Value(tickKey{}).(time.Time)
	return tick, ok
}

// once runs fn for a claim, again after a failure that is repeated. began reports whether fn was
// called in the last attempt.
func (j *Job) once(ctx context.Context, c *claim, wait time.Duration, fn Func) (began bool, err error) {
	until := time.Now().Add(wait)
	for {
		began, again, err := j.attempt(ctx, c, wait, fn)
		if !again {
			return began, err
		}
		wait = max(min(wait, j.cfg.wait), time.Until(until))
	}
}

func (j *Job) attempt(ctx context.Context, c *claim, wait time.Duration, fn Func) (began, again bool, err error) {
	if fn == nil {
		return false, false, errs.InvalidOption("schedule", "function is nil: must be set")
	}
	r, err := j.begin(ctx, c, wait)
	if err != nil {
		return false, false, err
	}
	failure := errors.New("the function did not return") // until it has
	defer func() {                                       // without recover, so that a panic keeps its stack
		if err != nil && ctx.Err() != nil {
			err = errs.Join(err, r.Abandon(ctx))
			return
		}
		repeat, endErr := r.end(ctx, failure)
		if again, err = repeat && endErr == nil, errs.Join(err, endErr); again {
			j.cfg.logger().Warn("pglock: tick failed, and is repeated", "job", j.name, "tick", r.tick, "error", err)
		}
	}()
	runCtx, stop := r.lease.WithContext(context.WithValue(ctx, tickKey{}, r.tick))
	defer stop()
	failure = fn(runCtx, r.lease)
	return true, false, failure
}
