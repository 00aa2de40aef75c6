package cronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

// Schedule is a cron.Schedule: it tells the first tick after t, by the machine's clock, and the zero time if there is
// none. Those of cron are; that of cron.Every is not the same in all schedulers, since it counts from when each began.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Runner is what cron calls a Job.
type Runner interface{ Run() }

// ContextRunner is a Job that wants to know when its run must end: the wrapper calls RunContext instead of Run.
type ContextRunner interface {
	Runner
	RunContext(ctx context.Context) error
}

// Func returns a function for cron.AddFunc or cron.FuncJob that runs fn if nobody else runs or has run the tick. fn's
// context is done when ctx is, which ends all runs, and when the lease is lost. What became of it, job's WithReport tells.
func Func(ctx context.Context, job *ticks.Job, schedule Schedule, fn func(ctx context.Context, l *pglock.Lease) error) (func(), error) {
	if job == nil || schedule == nil || fn == nil {
		return nil, fmt.Errorf("%w: the job, the schedule or the function is nil", pglock.ErrInvalidOption)
	}
	return once(ctx, job, schedule, fn), nil
}

func once(ctx context.Context, job *ticks.Job, schedule Schedule, fn func(ctx context.Context, l *pglock.Lease) error) func() {
	w := &clock{schedule: schedule, last: job.Now().Round(0)}
	return func() {
		tick := w.tick(job.Now().Round(0))
		job.Report(tick, job.Once(ctx, tick, fn))
	}
}

// Wrapper returns a cron.JobWrapper, if J is cron.Job, for jobs that are run at the ticks of schedule. A job that is
// a ContextRunner learns of the loss of its lease. A wrapper is for one job: two would take each other's ticks for done.
func Wrapper[J Runner](ctx context.Context, job *ticks.Job, schedule Schedule) (func(J) J, error) {
	if job == nil || schedule == nil {
		return nil, fmt.Errorf("%w: the job or the schedule is nil", pglock.ErrInvalidOption)
	}
	if _, ok := any((*wrapped)(nil)).(J); !ok {
		return nil, fmt.Errorf("%w: the type parameter is %T, it must be cron.Job", pglock.ErrInvalidOption, *new(J))
	}
	return func(inner J) J {
		w := &wrapped{once(ctx, job, schedule, func(ctx context.Context, _ *pglock.Lease) error {
			if c, ok := any(inner).(ContextRunner); ok {
				return c.RunContext(ctx)
			}
			inner.Run()
			return nil
		})}
		return any(w).(J)
	}, nil
}

// wrapped is a job that is run once per tick.
type wrapped struct{ run func() }

func (w *wrapped) Run() { w.run() }

// clock tells which tick of the schedule it is.
type clock struct {
	schedule Schedule

	mu   sync.Mutex
	last time.Time // the tick of the last run, or before the first one
}

const (
	early   = 500 * time.Millisecond // by how much a timer may fire too early
	longAgo = time.Hour              // ticks before that are not looked for
)

// tick returns the last tick up to now. After a clock was set back that is the last one returned, until the clock has
// come there again.
func (c *clock) tick(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.last
	if begin := now.Add(-longAgo); from.Before(begin) && !c.schedule.Next(begin).After(now) {
		from = begin
	}
	now = now.Add(early)
	for tick := c.schedule.Next(from); !tick.IsZero() && !tick.After(now); tick = c.schedule.Next(tick) {
		c.last = tick
	}
	return c.last
}

// ErrDone is ticks.ErrDone, for those who ask what a report means.
var ErrDone = ticks.ErrDone

// Done reports whether a report says no more than that another scheduler has run the tick, or runs it.
func Done(err error) bool { return errors.Is(err, ErrDone) || errors.Is(err, ticks.ErrNotAcquired) }
