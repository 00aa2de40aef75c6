package gocronlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// Locker is a gocron.Locker if L is gocron.Lock. It runs each tick of a job in one scheduler. It is
// safe for concurrent use.
type Locker[L interface{ Unlock(context.Context) error }] struct {
	client *pglock.Client
	name   string // of the only job; empty for any number of jobs
	grid   time.Duration
	opts   []schedule.Option
	logger func() *slog.Logger

	mu      sync.Mutex
	jobs    map[string]*job           // by gocron's key
	running map[context.Context]*Lock // by gocron's context of the run
}

// job is one job of a Locker.
type job struct {
	*schedule.Job
	check gridCheck
}

// Lock is a gocron.Lock: a tick that this scheduler runs.
type Lock struct {
	run    *schedule.Run
	job    *schedule.Job
	forget func() // removes it from Locker.running

	mu          sync.Mutex
	taskErr     error // of a function that was made by Task
	interrupted bool  // the task failed because its context was done
}

// ErrNoLock: a task ran without its locker. Pass the locker to gocron.WithDistributedLocker or
// gocron.WithDistributedJobLocker.
var ErrNoLock = errors.New("gocronlock: task runs without its lock")

// NewLocker returns a locker for the jobs of a scheduler, for gocron.WithDistributedLocker. L is
// gocron.Lock. The name of each lock is gocron's name of the job: set it with gocron.WithName.
//
// Ticks of the jobs must be at whole multiples of grid. Use a minute for cron expressions, and a
// second for cron expressions with seconds. Schedulers whose clocks differ identify a tick by its
// multiple, not by the moment at which they reach it. A tick may be late by nine tenths of grid.
//
// Jobs that do not follow the grid need a NewJobLocker each. An example is a DurationJob, which
// counts from the start of its scheduler. Under this locker, a job that is due less often than the
// grid runs once in each scheduler that started at another time. A job that is due more often runs
// once in each interval of the grid. At the third tick of such a job the locker logs a warning with
// the logger of schedule.WithLogger.
//
// gocron plans the next tick of a job when Lock has returned. Lock therefore waits for at most
// eight tenths of grid. The TTL of the lease is half of grid, but at most 30 s, so that another
// scheduler can run a dead scheduler's tick before the next tick is due. If schedule.WithTTL or
// schedule.WithWait set more than grid, ticks are missed.
//
// The error wraps ErrInvalidOption. NewLocker does not contact the database.
func NewLocker[L interface{ Unlock(context.Context) error }](client *pglock.Client, grid time.Duration, opts ...schedule.Option) (*Locker[L], error) {
	return newLocker[L](client, "", grid, opts)
}

// NewJobLocker returns a locker for one job, for gocron.WithDistributedJobLocker. interval is the
// time between two ticks: the duration of a DurationJob, or the shortest interval of another job.
// The intervals are the same for all schedulers. In each interval the first scheduler whose tick is
// due runs the job, no matter when the schedulers started.
//
// name is the lock's name, whatever gocron calls the job. The locker refuses a second job. In all
// other respects it is like NewLocker with interval as the grid.
func NewJobLocker[L interface{ Unlock(context.Context) error }](client *pglock.Client, name string, interval time.Duration, opts ...schedule.Option) (*Locker[L], error) {
	if _, err := schedule.New(client, name, opts...); err != nil {
		return nil, err
	}
	return newLocker[L](client, name, interval, opts)
}

func newLocker[L interface{ Unlock(context.Context) error }](client *pglock.Client, name string, grid time.Duration, opts []schedule.Option) (*Locker[L], error) {
	if _, ok := any((*Lock)(nil)).(L); !ok {
		return nil, invalidOption("type parameter is %T: must be gocron.Lock", *new(L))
	}
	if grid < time.Millisecond {
		return nil, invalidOption("grid %v is too short: must be 1ms or more", grid)
	}
	ttl := min(maxTTL, max(grid/2, minTTL))
	opts = append([]schedule.Option{schedule.WithTTL(ttl), schedule.WithWait(grid * 8 / 10)}, opts...)
	options, err := schedule.New(client, "options", opts...) // checks them, and has the logger
	if err != nil {
		return nil, err
	}
	return &Locker[L]{
		client: client, name: name, grid: grid, opts: opts, logger: options.Logger,
		jobs: map[string]*job{}, running: map[context.Context]*Lock{},
	}, nil
}

const (
	maxTTL = 30 * time.Second
	minTTL = 10 * time.Millisecond // the shortest TTL of a lease
)

// Lock begins a run of the job's current tick. It waits while another scheduler runs this tick or
// an earlier one, because that scheduler may die. On an error gocron skips the tick. The error
// wraps schedule.ErrDone if the tick was run, or is another one of schedule.Job.Begin.
func (l *Locker[L]) Lock(ctx context.Context, key string) (lock L, err error) {
	job, err := l.job(key)
	if err != nil {
		l.logger().Warn("pglock: job can't be locked", "job", key, "error", err)
		return lock, err
	}
	now := job.Now()
	if problem := job.check.problem(now, l.grid); problem != "" {
		job.Logger().Warn("pglock: job does not fit the grid", "job", job.Name(), "grid", l.grid, "problem", problem)
	}
	tick, err := schedule.Due(schedule.Every(l.grid), now)
	if err != nil {
		return lock, err
	}
	run, err := job.Begin(ctx, tick)
	if err != nil {
		if ctx.Err() == nil { // otherwise the scheduler stops, which is no failure
			job.Report(tick, err)
		}
		return lock, err
	}
	held := &Lock{run: run, job: job.Job}
	held.forget = func() { l.forget(ctx, held) }
	l.mu.Lock()
	l.running[ctx] = held
	l.mu.Unlock()
	return any(held).(L), nil
}

// job returns the job with gocron's key, and makes it at the first call.
func (l *Locker[L]) job(key string) (*job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j := l.jobs[key]; j != nil {
		return j, nil
	}
	name := key
	if l.name != "" {
		if len(l.jobs) > 0 {
			return nil, invalidOption("job locker %q is also used for job %q: each job needs a NewJobLocker", l.name, key)
		}
		name = l.name
	}
	scheduled, err := schedule.New(l.client, name, l.opts...)
	if err != nil {
		return nil, err
	}
	j := &job{Job: scheduled}
	l.jobs[key] = j
	return j, nil
}

func (l *Locker[L]) forget(ctx context.Context, held *Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[ctx] == held {
		delete(l.running, ctx)
	}
}

// Task returns a function for gocron.NewTask that calls fn. fn's context is done when the context
// of the run is done and when the lease is lost. If fn returns an error after the context of the
// run is done, another scheduler runs the tick.
//
// Without the lock of this locker the function does not call fn, and returns ErrNoLock.
func (l *Locker[L]) Task(fn func(ctx context.Context, lease *pglock.Lease) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		l.mu.Lock()
		held := l.running[ctx]
		l.mu.Unlock()
		if held == nil {
			l.logger().Warn("pglock: task skipped", "error", ErrNoLock)
			return ErrNoLock
		}
		runCtx, stop := held.run.Context(ctx)
		defer stop()
		err := fn(runCtx, held.run.Lease())
		held.mu.Lock()
		defer held.mu.Unlock()
		held.taskErr, held.interrupted = err, err != nil && ctx.Err() != nil
		return err
	}
}

// Unlock records the tick as run and releases the lock, even if ctx is done. If the task was
// interrupted, it only releases the lock. gocron drops the error of Unlock. schedule.WithLogger and
// schedule.WithReport receive it, joined with the error of a function that was made by Task.
func (k *Lock) Unlock(ctx context.Context) error {
	k.forget()
	k.mu.Lock()
	taskErr, interrupted := k.taskErr, k.interrupted
	k.mu.Unlock()
	if interrupted {
		return k.run.Abandon(ctx)
	}
	err := k.run.End(ctx)
	k.job.Report(k.run.Tick(), errs.Join(taskErr, err))
	return err
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("gocronlock", format, args...)
}
