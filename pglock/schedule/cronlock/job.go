package cronlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Schedule is a cron.Schedule: Next returns the first tick after t by the machine's clock, or the
// zero time if there is none. Use the result of cron.ParseStandard or of a cron.Parser. Ticks of
// cron.Every differ between schedulers, since it counts from the start of each.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Runner has the method of a cron.Job.
type Runner interface{ Run() }

// ContextRunner is a job that learns when its run must end: a Wrapper calls RunContext instead of
// Run.
type ContextRunner interface {
	Runner
	RunContext(ctx context.Context) error
}

// Func returns a function for cron.AddFunc or cron.FuncJob. The function calls fn unless another
// process runs or has run the tick. fn's context is done when the lease is lost, and when ctx is
// done, which ends all runs. The job logs failures and reports results as schedule.WithLogger and
// schedule.WithReport say.
//
// The error wraps ErrInvalidOption.
func Func(ctx context.Context, job *schedule.Job, ticks Schedule, fn func(ctx context.Context, l *pglock.Lease) error) (func(), error) {
	if err := check(job, ticks); err != nil {
		return nil, err
	}
	if fn == nil {
		return nil, invalidOption("function is nil: must be set")
	}
	return runOnce(ctx, job, ticks, fn), nil
}

// runOnce returns a function that runs the tick that is due.
func runOnce(ctx context.Context, job *schedule.Job, ticks Schedule, fn func(ctx context.Context, l *pglock.Lease) error) func() {
	due := &dueTick{ticks: ticks, last: job.Now().Round(0)}
	return func() {
		tick := due.at(job.Now().Round(0))
		err := job.Once(ctx, tick, fn)
		if ctx.Err() != nil && !errors.Is(err, schedule.ErrLost) {
			return // the scheduler stops: another one runs the tick
		}
		job.Report(tick, err)
	}
}

// Wrapper returns a cron.JobWrapper if J is cron.Job, for a job that runs at the times of ticks. A
// job that is a ContextRunner gets a context that is done when the lease is lost. Use a wrapper for
// one job only: a second job would find its ticks run.
//
// The error wraps ErrInvalidOption.
func Wrapper[J Runner](ctx context.Context, job *schedule.Job, ticks Schedule) (func(J) J, error) {
	if err := check(job, ticks); err != nil {
		return nil, err
	}
	if _, ok := any((*wrapped)(nil)).(J); !ok {
		return nil, invalidOption("type parameter is %T: must be cron.Job", *new(J))
	}
	return func(inner J) J {
		w := &wrapped{runOnce(ctx, job, ticks, func(ctx context.Context, _ *pglock.Lease) error {
			if c, ok := any(inner).(ContextRunner); ok {
				return c.RunContext(ctx)
			}
			inner.Run()
			return nil
		})}
		return any(w).(J)
	}, nil
}

// wrapped is a cron.Job that runs once per tick.
type wrapped struct{ run func() }

func (w *wrapped) Run() { w.run() }

func check(job *schedule.Job, ticks Schedule) error {
	if job == nil {
		return invalidOption("job is nil: must be from schedule.New")
	}
	if ticks == nil {
		return invalidOption("schedule is nil: must be set")
	}
	return nil
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("cronlock", format, args...)
}

// dueTick finds the tick that is due.
type dueTick struct {
	ticks Schedule

	mu   sync.Mutex
	last time.Time // the last tick that was due, or the time of the start
}

const (
	maxEarly    = 500 * time.Millisecond // how long before its tick a timer may fire
	maxLookback = time.Hour              // older ticks are not looked for
)

// at returns the last tick up to now. After the clock was set back, it returns the same tick again
// until the clock has passed it.
func (d *dueTick) at(now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	from := d.last
	if start := now.Add(-maxLookback); from.Before(start) && !d.ticks.Next(start).After(now) {
		from = start
	}
	now = now.Add(maxEarly)
	for tick := d.ticks.Next(from); !tick.IsZero() && !tick.After(now); tick = d.ticks.Next(tick) {
		d.last = tick
	}
	return d.last
}

// ErrDone is schedule.ErrDone.
var ErrDone = schedule.ErrDone

// Done reports whether an error of schedule.Job only says that another process has run the tick or
// runs it. Such errors are not reported.
func Done(err error) bool { return errors.Is(err, ErrDone) || errors.Is(err, schedule.ErrRunning) }
