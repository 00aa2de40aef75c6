package cronlock

import (
	"context"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Schedule is a cron.Schedule. Use the result of cron.ParseStandard or of a cron.Parser, or
// schedule.Every. Ticks of cron.Every differ between schedulers, since it counts from the start of
// each: it is refused.
type Schedule = schedule.Schedule

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
func Func(ctx context.Context, job *schedule.Job, ticks Schedule, fn schedule.Func) (func(), error) {
	if err := check(job, ticks); err != nil {
		return nil, err
	}
	if fn == nil {
		return nil, invalidOption("function is nil: must be set")
	}
	return runDue(ctx, job, ticks, fn), nil
}

// runDue returns a function that runs the tick that is due. The job logs and reports its error.
func runDue(ctx context.Context, job *schedule.Job, ticks Schedule, fn schedule.Func) func() {
	return func() { _ = job.RunDue(ctx, ticks, fn) }
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
		w := &wrapped{runDue(ctx, job, ticks, func(ctx context.Context, _ *pglock.Lease) error {
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
	_, err := schedule.Due(ticks, job.Now())
	return err
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("cronlock", format, args...)
}
