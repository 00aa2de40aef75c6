package adapters_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cronlock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

// counted is a cron.Job that exists already.
type counted struct{ runs atomic.Int32 }

func (c *counted) Run() { c.runs.Add(1) }

// aware is one that wants to know of loss.
type aware struct {
	counted
	seen chan error
	lose func()
}

func (a *aware) RunContext(ctx context.Context) error {
	a.lose()
	<-ctx.Done()
	a.seen <- context.Cause(ctx)
	return ctx.Err()
}

// TestCronsWrapper runs a job once for two machines, and tells it of loss.
func TestCronsWrapper(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	schedule := every{time.Hour}
	due := time.Now().Truncate(time.Hour).Add(-time.Hour) // the wrappers are made before the tick
	var shift atomic.Int64
	shift.Store(int64(time.Until(due)) - int64(time.Minute))
	clock := func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	reports := make(chan error, 4)
	wrapper := func(name string) func(cron.Job) cron.Job {
		t.Helper()
		job, err := ticks.New(openClient(t, url), name, ticks.WithTTL(time.Second), ticks.WithClock(clock), ticks.WithReport(func(_ time.Time, err error) { reports <- err }))
		if err != nil {
			t.Fatal(err)
		}
		w, err := cronlock.Wrapper[cron.Job](t.Context(), job, schedule)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	var count counted
	jobs := []cron.Job{cron.NewChain(wrapper("count")).Then(&count), cron.NewChain(wrapper("count")).Then(&count)}
	a := &aware{seen: make(chan error, 1), lose: func() {
		mustExec(t, pool, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE holder IS NOT NULL")
	}}
	awareJob := cron.NewChain(wrapper("aware")).Then(a)
	shift.Add(int64(2 * time.Minute)) // now it is due

	for i := range 2 {
		for _, job := range jobs {
			job.Run()
			err := <-reports
			if n := count.runs.Load(); n != int32(i+1) {
				t.Errorf("tick %d: it ran %d times: %v", i, n, err)
			}
			if job == jobs[1] && (!cronlock.Done(err) || !errors.Is(err, cronlock.ErrDone)) || job == jobs[0] && err != nil {
				t.Errorf("tick %d: report %v", i, err)
			}
		}
		shift.Add(int64(time.Hour)) // the next tick
	}
	shift.Add(-int64(3 * time.Hour)) // a clock that is set back makes no new ticks
	jobs[0].Run()
	if err := <-reports; !errors.Is(err, cronlock.ErrDone) {
		t.Errorf("a clock that was set back: %v", err)
	}
	shift.Add(int64(2 * time.Hour))
	awareJob.Run()
	if err := <-a.seen; !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the cause: %v", err)
	}
	if err := <-reports; !errors.Is(err, ticks.ErrLost) || a.runs.Load() != 0 {
		t.Errorf("the report: %v", err)
	}
}

func TestCronThatCannotBe(t *testing.T) {
	t.Parallel()
	job, err := ticks.New(openClient(t, pgtest.Database(t)), "n")
	if err != nil {
		t.Fatal(err)
	}
	none := func(context.Context, *pglock.Lease) error { return nil }
	_, noJob := cronlock.Wrapper[cron.Job](t.Context(), nil, every{time.Hour})
	_, noSchedule := cronlock.Wrapper[cron.Job](t.Context(), job, nil)
	_, otherType := cronlock.Wrapper[cron.FuncJob](t.Context(), job, every{time.Hour})
	_, noFunc := cronlock.Func(t.Context(), job, every{time.Hour}, nil)
	_, noJobFunc := cronlock.Func(t.Context(), nil, every{time.Hour}, none)
	for name, err := range map[string]error{"no job": noJob, "no schedule": noSchedule, "another type": otherType, "no function": noFunc, "no job for a function": noJobFunc} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
