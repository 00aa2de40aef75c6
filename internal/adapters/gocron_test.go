package adapters_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// newScheduler returns a scheduler that stops at the end of the test.
func newScheduler(t *testing.T, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(append(opts, gocron.WithStopTimeout(pgtest.Patience))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// now runs the job once, immediately.
func now(t *testing.T, s gocron.Scheduler, task any, opts ...gocron.JobOption) {
	t.Helper()
	if _, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(task), append(opts, gocron.WithName("report"))...); err != nil {
		t.Fatal(err)
	}
	s.Start()
}

// newTask returns the task of a scheduler of its own, for a job with hourly ticks of which one was due
// half an hour ago.
func newTask(t *testing.T, url string, fn schedule.Func, opts ...schedule.Option) func(ctx context.Context) error {
	t.Helper()
	job, err := schedule.New(locktest.Client(t, url), "report", append([]schedule.Option{at(lastHour.Add(30 * time.Minute))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return dueTask(job, schedule.Every(time.Hour), fn)
}

// dueTask is the task that the doc.go of package schedule shows.
func dueTask(job *schedule.Job, spec schedule.Schedule, fn schedule.Func) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if err := job.RunDue(ctx, spec, fn); !schedule.Done(err) {
			return err
		}
		return nil
	}
}

// lastHour is a past hour, so that its ticks do not depend on the time of day.
var lastHour = time.Now().Truncate(time.Hour).Add(-time.Hour)

// at makes the clock start at now.
func at(now time.Time) schedule.Option {
	shift := time.Until(now)
	return schedule.WithClock(func() time.Time { return time.Now().Add(shift) })
}

var errTask = errors.New("the task failed")

// TestAGocronTickThatRanElsewhereIsNoFailure: gocron learns of the job's own error only.
func TestAGocronTickThatRanElsewhereIsNoFailure(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var runs atomic.Int32
	for i, want := range []error{errTask, nil} {
		ended := make(chan error, 1)
		now(t, newScheduler(t), newTask(t, url, func(context.Context, *pglock.Lease) error { runs.Add(1); return errTask }), gocron.WithEventListeners(
			gocron.AfterJobRuns(func(uuid.UUID, string) { ended <- nil }),
			gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { ended <- err }),
		))
		if err := locktest.Receive(t, ended); !errors.Is(err, want) {
			t.Errorf("scheduler %d: %v, want %v", i, err, want)
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestAStoppedGocronLeavesItsTick: the run ends with its scheduler, nothing is logged or reported, and
// another scheduler runs the tick.
func TestAStoppedGocronLeavesItsTick(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	running, reports := make(chan bool, 1), make(chan error, 2)
	report := schedule.WithReport(func(_ time.Time, err error) { reports <- err })
	s, err := gocron.NewScheduler(gocron.WithStopTimeout(pgtest.Patience))
	if err != nil {
		t.Fatal(err)
	}
	now(t, s, newTask(t, url, func(ctx context.Context, _ *pglock.Lease) error {
		running <- true
		<-ctx.Done()
		return ctx.Err()
	}, report))
	locktest.Receive(t, running)
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	if len(reports) != 0 {
		t.Errorf("reported %v", <-reports)
	}
	now(t, newScheduler(t), newTask(t, url, func(context.Context, *pglock.Lease) error { return nil }, report))
	if err := locktest.Receive(t, reports); err != nil {
		t.Errorf("the other scheduler: %v", err)
	}
}

// TestGocronJobWithItsOwnInterval: two schedulers that start at different times. In the control, with
// ticks that are finer than the interval, both run the job.
func TestGocronJobWithItsOwnInterval(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	for name, ticks := range map[string]schedule.Schedule{
		"its interval": schedule.Every(interval), "control, finer ticks": schedule.Every(interval / 4),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			locktest.Client(t, url) // creates the tables
			pool := pgtest.PoolOn(t, url)
			locktest.Exec(t, pool, "CREATE TABLE runs (tick timestamptz, machine int)")
			const doubled = "SELECT count(*) FROM (SELECT FROM runs GROUP BY date_trunc('second', tick) HAVING count(*) > 1) d"
			var tasks [2]func(context.Context) error
			for machine := range tasks {
				job, err := schedule.New(locktest.Client(t, url), "report")
				if err != nil {
					t.Fatal(err)
				}
				tasks[machine] = dueTask(job, ticks, func(ctx context.Context, l *pglock.Lease) error {
					_, err := pool.Exec(ctx, "INSERT INTO runs SELECT (labels->>'tick')::timestamptz, $1 FROM pglock.distributed_locks WHERE token = $2", machine, int64(l.Token()))
					return err
				})
			}
			begin := time.Now().Truncate(interval).Add(2*interval + 300*time.Millisecond)
			for machine, task := range tasks {
				s := newScheduler(t)
				if _, err := s.NewJob(gocron.DurationJob(interval), gocron.NewTask(task),
					gocron.WithStartAt(gocron.WithStartDateTime(begin.Add(time.Duration(machine)*375*time.Millisecond)))); err != nil {
					t.Fatal(err)
				}
				s.Start()
			}
			if name != "its interval" {
				pgtest.Eventually(t, "seconds in which both ran it", func() bool { return locktest.Scan[int](t, pool, doubled) >= 2 })
				return
			}
			pgtest.Eventually(t, "four runs", func() bool { return locktest.Scan[int](t, pool, "SELECT count(*) FROM runs") >= 4 })
			if n := locktest.Scan[int](t, pool, doubled); n != 0 {
				t.Errorf("in %d seconds the job ran twice", n)
			}
		})
	}
}

// TestElector: the scheduler whose election leads runs a job, and the other one does not.
func TestElector(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	term := (*leader.Term)(nil)
	for _, leads := range []bool{true, false} {
		election, err := leader.New(locktest.Client(t, url), "leader")
		if err != nil {
			t.Fatal(err)
		}
		if leads { // Run does this
			if term, err = election.Campaign(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			ran := make(chan bool, 1)
			now(t, newScheduler(t, gocron.WithDistributedElector(elector{election})), func() { ran <- true })
			locktest.Receive(t, ran)
		}
		if err := (elector{election}).IsLeader(t.Context()); (err == nil) != leads {
			t.Errorf("it leads: %v, %v", leads, err)
		}
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}
