package schedule_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestTicksAreReported: each call for a tick has these results, and none for the transactions that
// record it.
func TestTicksAreReported(t *testing.T) {
	t.Parallel()
	tick := time.Now().Truncate(time.Second)
	own := errors.New("the function's")
	fails := func(context.Context, *pglock.Lease) error { return own }
	once := func(tick time.Time, fn schedule.Func) func(f fleet, j *schedule.Job) {
		return func(f fleet, j *schedule.Job) { _ = j.Once(f.t.Context(), tick, fn) }
	}
	for name, tc := range map[string]struct {
		call func(f fleet, j *schedule.Job)
		want string
	}{
		"done":     {once(tick, nothing), "began done"},
		"fails":    {once(tick, fails), "began failed"},
		"too late": {once(tick.Add(-time.Hour), nothing), "missed"},
		"clock":    {once(tick.Add(time.Hour), nothing), "failed"},
		"again":    {func(f fleet, j *schedule.Job) { once(tick, nothing)(f, f.job()); once(tick, fails)(f, j) }, ""},
		"panics": {func(f fleet, j *schedule.Job) {
			defer func() { _ = recover() }()
			once(tick, func(context.Context, *pglock.Lease) error { panic("a test") })(f, j)
		}, "began failed"},
		"interrupted": {func(f fleet, j *schedule.Job) {
			ctx, cancel := context.WithCancel(f.t.Context())
			_ = j.Once(ctx, tick, func(ctx context.Context, _ *pglock.Lease) error { cancel(); return ctx.Err() })
		}, "began abandoned"},
		"its lease is lost": {func(f fleet, j *schedule.Job) {
			once(tick, func(context.Context, *pglock.Lease) error { f.expire(); return nil })(f, j)
		}, "began abandoned"},
		"once per day": {func(f fleet, j *schedule.Job) { _ = j.OncePer(f.t.Context(), 24*time.Hour, nothing) }, "began done"},
		"still runs": {func(f fleet, j *schedule.Job) {
			r, err := f.job().Begin(f.t.Context(), tick.Add(-time.Second))
			ok(f.t, err)
			once(tick, nothing)(f, j)
			ok(f.t, r.Abandon(f.t.Context()))
		}, "missed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			var r locktest.Results
			tc.call(f, f.jobOf(f.client(r.Observer(), pglock.WithLogger(nil)), schedule.WithLogger(nil), schedule.WithMaxLate(30*time.Minute), schedule.WithWait(time.Second)))
			all, got := r.Of(observe.KindTick)
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			for _, e := range all {
				began := e.Outcome == observe.OutcomeBegan
				if e.Name != "report" || began && e.Duration > time.Minute || (e.Err == nil) != (began || e.Outcome == observe.OutcomeDone || name == "interrupted") {
					t.Errorf("%+v", e)
				}
			}
			if _, got := r.Of(observe.KindTx); got != "" {
				t.Errorf("transactions: %q", got)
			}
		})
	}
}

// TestRunAnnouncesTheNextTick: of ticks that were missed, one result says so, unless another process
// has run them. While a tick runs, the one after it is announced, and in the end none.
func TestRunAnnouncesTheNextTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	day := schedule.Daily("03:00", time.UTC)
	last := time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)
	ok(t, f.job().Once(t.Context(), last, nothing))
	now := last.AddDate(0, 0, 3).Add(6 * time.Hour)
	var r locktest.Results
	job := f.jobOf(f.client(r.Observer()), schedule.WithClock(func() time.Time { return now }), schedule.WithLogger(nil))
	running, end := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() {
		stopped <- job.Run(ctx, day, func(context.Context, *pglock.Lease) error { close(running); <-end; return nil })
	}()
	locktest.Receive(t, running)
	if next, ok := r.Announced(observe.KindTick); !ok || next.Duration != 18*time.Hour {
		t.Errorf("the next tick: %+v", next)
	}
	close(end)
	pgtest.Eventually(t, "it is done", func() bool { _, got := r.Of(observe.KindTick); return got == "missed began done" })
	if all, _ := r.Of(observe.KindTick); all[1].Duration != 6*time.Hour {
		t.Errorf("late by %v", all[1].Duration)
	}
	cancel()
	_ = locktest.Receive(t, stopped)
	if next, _ := r.Announced(observe.KindTick); next.Duration > -100*365*24*time.Hour {
		t.Errorf("after Run: %+v", next)
	}
}
