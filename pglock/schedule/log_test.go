package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestFailuresAreLogged: failures of the job and of the database are logged at Warn by the default
// logger, and reported. The test is not parallel, because it sets the default logger.
func TestFailuresAreLogged(t *testing.T) { //nolint:paralleltest // it sets the default logger
	logged := make(chan slog.Record, 1000)
	before := slog.Default()
	defer slog.SetDefault(before)
	failJobs(t, nil, logged, func(want error) {
		r := locktest.Receive(t, logged)
		for want == nil && errors.Is(locktest.Error(r), errJob) { // later failures of the job
			r = locktest.Receive(t, logged)
		}
		if r.Level != slog.LevelWarn || want != nil && !errors.Is(locktest.Error(r), want) {
			t.Errorf("logged %v", r)
		}
	})
}

// TestNoLogger: with WithLogger(nil) failures are reported, and nothing is logged.
func TestNoLogger(t *testing.T) { //nolint:paralleltest // it sets the default logger
	logged := make(chan slog.Record, 1000)
	before := slog.Default()
	defer slog.SetDefault(before)
	failJobs(t, []schedule.Option{schedule.WithLogger(nil)}, logged, func(error) {})
	if len(logged) != 0 {
		t.Errorf("logged %v", <-logged)
	}
}

var errJob = errors.New("the job failed")

// failJobs runs a job that fails, and then stops the database. After each of the two failures is
// reported, it calls failed with the error, or with nil for that of the database. It sets logged as
// the default logger after New, since the default is read for each log line.
func failJobs(t *testing.T, opts []schedule.Option, logged chan<- slog.Record, failed func(want error)) {
	t.Helper()
	f := newFleet(t)
	u, err := url.Parse(pgtest.URL(t))
	ok(t, err)
	proxy := faultproxy.New(t, u.Host)
	f.pool = pgtest.PoolOn(t, proxy.URL(u.String()))
	reported := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	job := f.job(append(opts, schedule.WithReport(func(_ time.Time, err error) {
		select { // in any order: after cancel the result is not needed
		case reported <- err:
		case <-ctx.Done():
		}
	}))...)
	slog.SetDefault(slog.New(locktest.Records(logged)))
	end := make(chan error, 1)
	go func() {
		end <- job.Run(ctx, schedule.Every(20*time.Millisecond), func(context.Context, *pglock.Lease) error { return errJob })
	}()
	if err := locktest.Receive(t, reported); !errors.Is(err, errJob) {
		t.Errorf("reported %v", err)
	}
	failed(errJob)
	proxy.Refuse(true) // the database is stopped
	proxy.Sever()
	for err := errJob; errors.Is(err, errJob); {
		err = locktest.Receive(t, reported)
	}
	failed(nil)
	cancel()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	proxy.Refuse(false)
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
