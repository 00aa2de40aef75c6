package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

// Locker is a gocron.Locker, if L is gocron.Lock. It is safe for concurrent use.
type Locker[L interface{ Unlock(context.Context) error }] struct {
	client *pglock.Client
	grid   time.Duration
	opts   []ticks.Option

	mu      sync.Mutex
	jobs    map[string]*ticks.Job     // by gocron's key
	running map[context.Context]*Lock // by gocron's context of the job
}

// Lock is a gocron.Lock: a tick that this scheduler runs.
type Lock struct {
	run    *ticks.Run
	job    *ticks.Job
	forget func()

	mu     sync.Mutex
	cutOff bool // the task was, so that somebody else shall run the tick
}

// ErrNoLock: a task was run without the locker: pass it to gocron.WithDistributedLocker or WithDistributedJobLocker.
var ErrNoLock = errors.New("gocronlock: the task runs without its lock")

// NewLocker returns a locker for jobs whose ticks are at whole multiples of grid: a minute for cron expressions, a
// second for those with seconds, and the duration itself for a DurationJob. That is how schedulers whose clocks differ
// know the same tick: by its number, not by when they come to it. A job that does not keep to the grid runs once in
// each of its cells. A tick may come late by nine tenths of grid.
//
// gocron plans a job's next tick when Lock has returned. So Lock waits for eight tenths of grid at most, and the lease
// lasts half of it, or 30 s if that is less, when its holder dies: another scheduler runs the dead one's tick before the
// next one comes. With ticks.WithTTL and WithWait above grid, ticks are missed then.
//
// L is gocron.Lock. The job's name, as gocron has it, is the lock's: set it by gocron.WithName.
func NewLocker[L interface{ Unlock(context.Context) error }](client *pglock.Client, grid time.Duration, opts ...ticks.Option) (*Locker[L], error) {
	if _, ok := any((*Lock)(nil)).(L); !ok {
		return nil, fmt.Errorf("%w: the type parameter is %T, it must be gocron.Lock", pglock.ErrInvalidOption, *new(L))
	}
	if grid < time.Millisecond {
		return nil, fmt.Errorf("%w: a grid of %v, the least is a millisecond", pglock.ErrInvalidOption, grid)
	}
	opts = append([]ticks.Option{ticks.WithTTL(min(maxTTL, max(grid/2, minTTL))), ticks.WithWait(grid * 8 / 10)}, opts...)
	if _, err := ticks.New(client, "options", opts...); err != nil {
		return nil, err
	}
	return &Locker[L]{client: client, grid: grid, opts: opts, jobs: map[string]*ticks.Job{}, running: map[context.Context]*Lock{}}, nil
}

const (
	maxTTL = 30 * time.Second
	minTTL = 10 * time.Millisecond // the shortest lease

	maxEarly = 10 * time.Second // that a timer may fire before its tick
)

// Lock takes the job's tick of now. It waits while another scheduler runs it (or an earlier one), since that may die.
// An error, which wraps ticks.ErrDone if the tick was run, has gocron skip it.
func (l *Locker[L]) Lock(ctx context.Context, key string) (lock L, err error) {
	job, err := l.job(key)
	if err != nil {
		return lock, err
	}
	tick := tickOf(job.Now(), l.grid)
	run, err := job.Begin(ctx, tick)
	if err != nil {
		job.Report(tick, err)
		return lock, err
	}
	held := &Lock{run: run, job: job}
	held.forget = func() { l.forget(ctx, held) }
	l.mu.Lock()
	l.running[ctx] = held
	l.mu.Unlock()
	return any(held).(L), nil
}

// tickOf returns the multiple of grid that now belongs to. A timer that fires a little early belongs to the next; of
// a long grid a tenth would be no little, and so far ahead of the database's clock that the tick is refused.
func tickOf(now time.Time, grid time.Duration) time.Time {
	return now.Round(0).Add(min(grid/10, maxEarly)).Truncate(grid)
}

func (l *Locker[L]) job(key string) (*ticks.Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if job := l.jobs[key]; job != nil {
		return job, nil
	}
	job, err := ticks.New(l.client, key, l.opts...)
	if err == nil {
		l.jobs[key] = job
	}
	return job, err
}

func (l *Locker[L]) forget(ctx context.Context, held *Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[ctx] == held {
		delete(l.running, ctx)
	}
}

// Task makes a function for gocron.NewTask of one whose context is done when the job's is, and when its lease is lost. If
// it returns an error when the job's context is done, another scheduler runs the tick.
func (l *Locker[L]) Task(fn func(ctx context.Context, lease *pglock.Lease) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		l.mu.Lock()
		held := l.running[ctx]
		l.mu.Unlock()
		if held == nil {
			return ErrNoLock
		}
		during, stop := held.run.Context(ctx)
		defer stop()
		err := fn(during, held.run.Lease())
		if err != nil && ctx.Err() != nil {
			held.mu.Lock()
			held.cutOff = true
			held.mu.Unlock()
		}
		return err
	}
}

// Unlock records the tick as run and gives the lock back, also when ctx is done. gocron drops its error; WithReport
// tells it.
func (k *Lock) Unlock(ctx context.Context) error {
	k.forget()
	k.mu.Lock()
	end := k.run.End
	if k.cutOff {
		end = k.run.Abandon
	}
	k.mu.Unlock()
	err := end(ctx)
	k.job.Report(k.run.Tick(), err)
	return err
}
