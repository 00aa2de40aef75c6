package adapters_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

var errTask = errors.New("the task failed")

func failingTask(context.Context, *pglock.Lease) error { return errTask }

// wantWarning fails the test unless want is logged at Warn, and nothing else.
func wantWarning(t *testing.T, logged <-chan slog.Record, what string, want error) {
	t.Helper()
	select {
	case r := <-logged:
		if r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), want) {
			t.Errorf("%s: logged %v", what, r)
		}
	default:
		t.Errorf("%s: nothing is logged", what)
	}
	if len(logged) != 0 {
		t.Errorf("%s: more is logged: %v", what, <-logged)
	}
}

// newLoggedLocker returns a locker, and channels with what it logs and reports.
func newLoggedLocker(t *testing.T) (locker *gocronlock.Locker[gocron.Lock], logged chan slog.Record, reported chan error) {
	t.Helper()
	logged, reported = make(chan slog.Record, 10), make(chan error, 10)
	locker, err := gocronlock.NewLocker[gocron.Lock](locktest.Client(t, pgtest.Database(t)), time.Hour,
		schedule.WithLogger(slog.New(locktest.Records(logged))),
		schedule.WithReport(func(_ time.Time, err error) { reported <- err }))
	if err != nil {
		t.Fatal(err)
	}
	return locker, logged, reported
}

// TestGocronTaskFailuresAreLogged: failures are logged at Warn and reported. gocron reports a
// task's errors only to event listeners.
func TestGocronTaskFailuresAreLogged(t *testing.T) {
	t.Parallel()
	locker, logged, reported := newLoggedLocker(t)
	ctx, cancel := context.WithCancel(t.Context()) // the key by which the locker finds the lock
	defer cancel()
	lock, err := locker.Lock(ctx, "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := locker.Task(failingTask)(ctx); !errors.Is(err, errTask) {
		t.Errorf("the task: %v", err)
	}
	if err := lock.Unlock(ctx); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	wantWarning(t, logged, "a task that fails", errTask)
	if err := <-reported; !errors.Is(err, errTask) {
		t.Errorf("a task that fails: reported %v", err)
	}
	if err := locker.Task(failingTask)(t.Context()); !errors.Is(err, gocronlock.ErrNoLock) {
		t.Errorf("a task without its lock: %v", err)
	}
	wantWarning(t, logged, "a task without its lock", gocronlock.ErrNoLock)
}

// TestAStoppedGocronLogsNothing: a scheduler that stops leaves the tick to another one.
func TestAStoppedGocronLogsNothing(t *testing.T) {
	t.Parallel()
	locker, logged, reported := newLoggedLocker(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lock, err := locker.Lock(ctx, "stopped")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := locker.Task(failingTask)(ctx); !errors.Is(err, errTask) {
		t.Errorf("the task: %v", err)
	}
	if err := lock.Unlock(ctx); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if _, err := locker.Lock(ctx, "stopped"); !errors.Is(err, context.Canceled) {
		t.Errorf("a stopped scheduler: %v", err)
	}
	if len(logged) != 0 || len(reported) != 0 {
		t.Errorf("a stopped scheduler: %d lines, %d reports", len(logged), len(reported))
	}
}

// TestElectorFailuresAreLogged: failures are logged at Warn, since gocron drops an elector's
// errors. WithElectorLogger(nil) logs nothing.
func TestElectorFailuresAreLogged(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	logged := make(chan slog.Record, 10)
	client := locktest.Client(t, url)
	for _, l := range []*slog.Logger{slog.New(locktest.Records(logged)), nil} {
		c := locktest.Client(t, url)
		elector, err := gocronlock.NewElector(c, "leader", gocronlock.WithElectorLogger(l), pglock.WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		held, err := client.Acquire(t.Context(), "leader")
		if err != nil {
			t.Fatal(err)
		}
		if err := elector.IsLeader(t.Context()); !errors.Is(err, pglock.ErrNotAcquired) || len(logged) != 0 {
			t.Errorf("while another one leads: %v, %d lines", err, len(logged))
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := elector.Task(failingTask)(t.Context()); !errors.Is(err, errTask) {
			t.Errorf("the leader's task: %v", err)
		}
		if l != nil {
			wantWarning(t, logged, "the leader's task", errTask)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := elector.IsLeader(t.Context()); !errors.Is(err, pglock.ErrClosed) {
			t.Errorf("without the database: %v", err)
		}
		if l != nil {
			wantWarning(t, logged, "without the database", pglock.ErrClosed)
		}
	}
	if len(logged) != 0 {
		t.Errorf("without a logger: %v", <-logged)
	}
	if _, err := client.TryAcquire(t.Context(), "other", gocronlock.WithElectorLogger(nil)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("an elector's option for another lease: %v", err)
	}
}
