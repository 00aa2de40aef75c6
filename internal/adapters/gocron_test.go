package adapters_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

var (
	_ gocron.Locker  = (*gocronlock.Locker[gocron.Lock])(nil)
	_ gocron.Lock    = (*gocronlock.Lock)(nil)
	_ gocron.Elector = (*gocronlock.Elector)(nil)
)

// newScheduler returns a scheduler that stops at the end of the test.
func newScheduler(t *testing.T, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(append(opts, gocron.WithStopTimeout(locktest.Patience))...)
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

// lastHour is a past hour, so that its ticks do not depend on the time of day.
var lastHour = time.Now().Truncate(time.Hour).Add(-time.Hour)

// at makes the clock start at now.
func at(now time.Time) schedule.Option {
	shift := time.Until(now)
	return schedule.WithClock(func() time.Time { return time.Now().Add(shift) })
}

// TestHourlyTickIsNotRunMinutesEarly: a job that is due five minutes before the hour belongs to the
// last hour. The tick of the next hour would be refused with ErrClock.
func TestHourlyTickIsNotRunMinutesEarly(t *testing.T) {
	t.Parallel()
	reported := make(chan time.Time, 1)
	locker, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, pgtest.Database(t)), time.Hour, at(lastHour.Add(55*time.Minute)),
		schedule.WithReport(func(tick time.Time, _ error) { reported <- tick }))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tick := <-reported; !tick.Equal(lastHour) {
		t.Errorf("the tick was %v", tick)
	}
}

// TestAGocronJobLearnsOfLoss: its context is done, and another scheduler runs the tick.
func TestAGocronJobLearnsOfLoss(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	reports, halfPast := make(chan error, 2), at(lastHour.Add(30*time.Minute))
	locker, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, url), time.Hour, halfPast, schedule.WithTTL(6*time.Second), schedule.WithReport(func(_ time.Time, err error) { reports <- err }))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	now(t, newScheduler(t, gocron.WithDistributedLocker(locker)), locker.Task(func(ctx context.Context, l *pglock.Lease) error {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE token = $1", int64(l.Token()))
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}))
	select {
	case err := <-ended:
		if !errors.Is(err, pglock.ErrLost) {
			t.Errorf("the cause: %v", err)
		}
	case err := <-reports:
		t.Fatalf("the task has not run: %v", err)
	case <-time.After(locktest.Patience):
		t.Fatal("gocron has not run the task")
	}
	if err := <-reports; !errors.Is(err, schedule.ErrLost) {
		t.Errorf("the report: %v", err)
	}
	other, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, url), time.Hour, halfPast)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	now(t, newScheduler(t, gocron.WithDistributedLocker(other)), other.Task(func(context.Context, *pglock.Lease) error { close(ran); return nil }))
	<-ran
}

// TestAGocronJobThatRanIsSkippedElsewhere: gocron gets the reason.
func TestAGocronJobThatRanIsSkippedElsewhere(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	done, halfPast := make(chan error, 2), at(lastHour.Add(30*time.Minute))
	for range 2 {
		locker, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, url), time.Hour, halfPast)
		if err != nil {
			t.Fatal(err)
		}
		now(t, newScheduler(t, gocron.WithDistributedLocker(locker)), locker.Task(func(context.Context, *pglock.Lease) error { return nil }), gocron.WithEventListeners(
			gocron.AfterJobRuns(func(uuid.UUID, string) { done <- nil }),
			gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { done <- err }),
		))
	}
	first, second := <-done, <-done
	if first != nil {
		first, second = second, first
	}
	if first != nil || !errors.Is(second, schedule.ErrDone) {
		t.Errorf("two machines: %v, %v", first, second)
	}
}

// TestALockerWaitsForLessThanATick: gocron plans the next tick when Lock has returned.
func TestALockerWaitsForLessThanATick(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	lockers := make([]*gocronlock.Locker[gocron.Lock], 2)
	for i := range lockers {
		var err error
		if lockers[i], err = gocronlock.NewLocker[gocron.Lock](locktest.Client(t, url), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	held, err := lockers[0].Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, err := lockers[1].Lock(t.Context(), "report"); !errors.Is(err, schedule.ErrNotAcquired) {
		t.Errorf("while it runs elsewhere: %v", err)
	}
	if d := time.Since(begun); d > 15*time.Second { // it takes a second on an idle machine
		t.Errorf("that took %v", d)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// TestATaskWithoutItsLockerDoesNotRun: it would run in every scheduler.
func TestATaskWithoutItsLockerDoesNotRun(t *testing.T) {
	t.Parallel()
	locker, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, pgtest.Database(t)), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	now(t, newScheduler(t), locker.Task(func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil }),
		gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err })))
	if err := <-failed; !errors.Is(err, gocronlock.ErrNoLock) {
		t.Errorf("without its locker: %v", err)
	}
}

// TestElector: one scheduler is the leader. Another one takes over when the leader resigns or loses
// its lease.
func TestElector(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	electors := make([]*gocronlock.Elector, 2)
	for i := range electors {
		var err error
		if electors[i], err = gocronlock.NewElector(locktest.Client(t, url), "leader", pglock.WithTTL(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	one, other := electors[0], electors[1]
	for range 2 {
		if err := one.IsLeader(t.Context()); err != nil {
			t.Errorf("the first: %v", err)
		}
		var busy *pglock.BusyError
		if err := other.IsLeader(t.Context()); !errors.As(err, &busy) {
			t.Errorf("the second: %v", err)
		}
	}
	if err := one.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if err := one.Resign(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	// The other one is the leader now, with gocron.
	ended := make(chan error, 1)
	now(t, newScheduler(t, gocron.WithDistributedElector(other)), other.Task(func(ctx context.Context, _ *pglock.Lease) error {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE holder IS NOT NULL")
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}))
	if err := <-ended; !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the cause: %v", err)
	}
	if err := one.IsLeader(t.Context()); err != nil {
		t.Errorf("after the leader's loss: %v", err)
	}
	if err := other.Task(func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil })(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("a task of a scheduler that is not the leader: %v", err)
	}
	if _, err := gocronlock.NewElector(nil, "leader"); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no client: %v", err)
	}
}

func TestLockerInvalidArguments(t *testing.T) {
	t.Parallel()
	client := locktest.Client(t, pgtest.Database(t))
	if _, err := gocronlock.NewLocker[gocron.Lock](client, 0); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no grid: %v", err)
	}
	if _, err := gocronlock.NewLocker[gocron.Lock](nil, time.Second); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no client: %v", err)
	}
	type other interface {
		gocron.Lock
		More()
	}
	if _, err := gocronlock.NewLocker[other](client, time.Second); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("another type: %v", err)
	}
	locker, err := gocronlock.NewLocker[gocron.Lock](client, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Lock(t.Context(), ""); !errors.Is(err, pglock.ErrInvalidName) {
		t.Errorf("a job without a name: %v", err)
	}
}
