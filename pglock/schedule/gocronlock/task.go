package gocronlock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Task returns a function for gocron.NewTask. Whenever gocron calls it, it runs fn for the tick of
// ticks that is due, unless a scheduler has run this tick: see schedule.Job.RunDue. It waits while
// another scheduler runs the tick, to take it over if that scheduler dies.
//
// ticks gives the ticks, and gocron only says when to look. So a scheduler that was paused, whose
// clock differs, or that calls too often finds the tick done, and a job runs no tick twice. All
// schedulers must use the same ticks: those at which gocron calls the task.
//
// The function returns nil if the tick was run, here or by another scheduler, and otherwise the error of
// RunDue, which gocron passes to AfterJobRunsWithError. The job logs and reports it, too. fn's
// context is done when the lease is lost and when gocron stops or removes the job. A run that fails
// because gocron stops leaves the tick to another scheduler.
//
// The error of Task wraps pglock.ErrInvalidOption.
func Task(job *schedule.Job, ticks schedule.Schedule, fn schedule.Func) (func(ctx context.Context) error, error) {
	if job == nil {
		return nil, invalidOption("job is nil: must be from schedule.New")
	}
	if fn == nil {
		return nil, invalidOption("function is nil: must be set")
	}
	if _, err := schedule.Due(ticks, time.Now()); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := job.RunDue(ctx, ticks, fn); !schedule.Done(err) {
			return err
		}
		return nil
	}, nil
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("gocronlock", format, args...)
}
