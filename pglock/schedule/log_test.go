package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestFailuresAreLogged at Warn by the default logger of the moment, unless WithLogger sets none, and
// reported in any case. The test is not parallel, because it sets the default logger.
func TestFailuresAreLogged(t *testing.T) { //nolint:paralleltest // it sets the default logger
	f := newFleet(t)
	logged, reported := make(chan slog.Record, 10), make(chan error, 10)
	report := schedule.WithReport(func(_ time.Time, err error) { reported <- err })
	loud, silent := f.job(report), f.job(report, schedule.WithLogger(nil))
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(locktest.Records(logged)))
	failure := errors.New("the job failed")
	for i, job := range []*schedule.Job{loud, silent} {
		err := job.RunDue(t.Context(), list{time.Now().Add(time.Duration(i-2) * time.Millisecond)}, func(context.Context, *pglock.Lease) error { return failure })
		if got := locktest.Receive(t, reported); !errors.Is(err, failure) || !errors.Is(got, failure) {
			t.Errorf("job %d: %v, reported %v", i, err, got)
		}
	}
	if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), failure) || len(logged) != 0 {
		t.Errorf("logged %v, and %d lines more", r, len(logged))
	}
}

// TestTicksOfOthersAreNoFailures: a tick that another process has run or is running is not
// reported, and is logged at Debug. A tick that is skipped because an earlier one still runs is a
// failure.
func TestTicksOfOthersAreNoFailures(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	logged, reported := make(chan slog.Record, 1), make(chan error, 1)
	other := f.job(schedule.WithWait(0), schedule.WithLogger(slog.New(locktest.Records(logged))), schedule.WithReport(func(_ time.Time, err error) { reported <- err }))
	tick := time.Now().Truncate(time.Second)
	once := func(tick time.Time) error {
		err := other.Once(t.Context(), tick, nothing)
		other.Report(tick, err)
		return err
	}
	silent := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
		if r := locktest.Receive(t, logged); r.Level != slog.LevelDebug || !errors.Is(locktest.Error(r), want) {
			t.Errorf("%s: logged %v", what, r)
		}
		if len(reported) != 0 {
			t.Errorf("%s: reported %v", what, <-reported)
		}
	}
	err := f.job().Once(t.Context(), tick, func(context.Context, *pglock.Lease) error {
		err := once(tick)
		silent("it is being run", err, schedule.ErrRunning)
		if !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("it is being run: %v", err)
		}
		silent("a later one is being run", once(tick.Add(-time.Second)), schedule.ErrRunning)
		err = once(tick.Add(time.Second))
		if !errors.Is(err, pglock.ErrNotAcquired) || errors.Is(err, schedule.ErrRunning) || !strings.Contains(err.Error(), tick.UTC().Format(time.RFC3339)) {
			t.Errorf("an earlier one is being run: %v", err)
		}
		if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), pglock.ErrNotAcquired) {
			t.Errorf("an earlier one is being run: logged %v", r)
		}
		if got := locktest.Receive(t, reported); !errors.Is(got, pglock.ErrNotAcquired) {
			t.Errorf("an earlier one is being run: reported %v", got)
		}
		return nil
	})
	ok(t, err)
	silent("it was run", once(tick), schedule.ErrDone)
	if err := once(tick.Add(time.Second)); err != nil || locktest.Receive(t, reported) != nil || len(logged) != 0 {
		t.Errorf("the next one: %v", err)
	}
}
