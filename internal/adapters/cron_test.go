package adapters_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/cronlock"
)

// counted is an existing cron.Job.
type counted struct{ runs atomic.Int32 }

func (c *counted) Run() { c.runs.Add(1) }

// aware is a cron.Job that is a ContextRunner.
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

// TestCronWrapper: the wrappers of two machines run a job once, and the job learns of a loss.
func TestCronWrapper(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.PoolOn(t, url)
	ticks := every{time.Hour}
	due := time.Now().Truncate(time.Hour).Add(-time.Hour) // the wrappers are made before the tick
	var shift atomic.Int64
	shift.Store(int64(time.Until(due)) - int64(time.Minute))
	clock := func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	reports, elsewhere := make(chan error, 4), make(chan slog.Record, 4)
	wrapper := func(name string) func(cron.Job) cron.Job {
		t.Helper()
		job, err := schedule.New(locktest.Client(t, url), name, schedule.WithTTL(time.Second), schedule.WithClock(clock),
			schedule.WithReport(func(_ time.Time, err error) { reports <- err }), schedule.WithLogger(slog.New(locktest.Records(elsewhere))))
		if err != nil {
			t.Fatal(err)
		}
		w, err := cronlock.Wrapper[cron.Job](t.Context(), job, ticks)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	var count counted
	jobs := []cron.Job{cron.NewChain(wrapper("count")).Then(&count), cron.NewChain(wrapper("count")).Then(&count)}
	a := &aware{seen: make(chan error, 1), lose: func() {
		locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE holder IS NOT NULL")
	}}
	awareJob := cron.NewChain(wrapper("aware")).Then(a)
	shift.Add(int64(2 * time.Minute)) // now it is due

	for i := range 2 {
		for _, job := range jobs {
			job.Run()
			if n := count.runs.Load(); n != int32(i+1) {
				t.Errorf("tick %d: it ran %d times", i, n)
			}
			if job == jobs[0] {
				if err := <-reports; err != nil {
					t.Errorf("tick %d: report %v", i, err)
				}
				continue
			}
			if r := <-elsewhere; r.Level != slog.LevelDebug || !schedule.Done(locktest.Error(r)) {
				t.Errorf("tick %d, another machine: logged %v", i, r)
			}
		}
		shift.Add(int64(time.Hour)) // the next tick
	}
	shift.Add(-int64(3 * time.Hour)) // a clock that is set back does not add ticks
	jobs[0].Run()
	if r := <-elsewhere; r.Level != slog.LevelDebug || !errors.Is(locktest.Error(r), schedule.ErrDone) {
		t.Errorf("a clock that was set back: logged %v", r)
	}
	shift.Add(int64(2 * time.Hour))
	awareJob.Run()
	if err := <-a.seen; !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the cause: %v", err)
	}
	if err := <-reports; !errors.Is(err, schedule.ErrLost) || a.runs.Load() != 0 {
		t.Errorf("the report: %v", err)
	}
	if r := <-elsewhere; r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), schedule.ErrLost) {
		t.Errorf("the loss: logged %v", r)
	}
	if len(reports) != 0 || len(elsewhere) != 0 {
		t.Errorf("%d more reports, %d more lines", len(reports), len(elsewhere))
	}
}

func TestCronInvalidArguments(t *testing.T) {
	t.Parallel()
	job, err := schedule.New(locktest.Client(t, pgtest.Database(t)), "n")
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

// TestAStoppedCronReportsNothing: a run that fails because the scheduler stops is not reported, and
// another scheduler runs the tick.
func TestAStoppedCronReportsNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	reports, logged := make(chan error, 2), make(chan slog.Record, 2)
	start := time.Now().Truncate(time.Hour).Add(-time.Minute)
	shift := time.Until(start)
	runs := make([]func(), 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, ctx := range []context.Context{ctx, t.Context()} {
		job, err := schedule.New(locktest.Client(t, url), "report", schedule.WithClock(func() time.Time { return time.Now().Add(shift) }),
			schedule.WithReport(func(_ time.Time, err error) { reports <- err }), schedule.WithLogger(slog.New(locktest.Records(logged))))
		if err != nil {
			t.Fatal(err)
		}
		runs[i], err = cronlock.Func(ctx, job, every{time.Hour}, func(ctx context.Context, _ *pglock.Lease) error {
			cancel()
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	shift += 2 * time.Minute
	runs[0]()
	if len(reports) != 0 || len(logged) != 0 {
		t.Errorf("the scheduler that stops: %d reports, %d lines", len(reports), len(logged))
	}
	runs[1]()
	if err := locktest.Receive(t, reports); err != nil {
		t.Errorf("the other scheduler: %v", err)
	}
}

// TestACronExpressionIsASchedule: two replicas run Job.Run with a parsed expression. Each tick runs
// once.
func TestACronExpressionIsASchedule(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	spec, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("*/1 * * * * *")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan string, 100)
	var replicas sync.WaitGroup
	for _, ahead := range []time.Duration{0, 700 * time.Millisecond} {
		client := locktest.Client(t, url)
		job, err := schedule.New(client, "report", schedule.WithClock(func() time.Time { return time.Now().Add(ahead) }))
		if err != nil {
			t.Fatal(err)
		}
		replicas.Go(func() {
			err := job.Run(ctx, spec, func(ctx context.Context, l *pglock.Lease) error {
				info, err := client.Get(ctx, l.Name())
				ran <- info.Labels["tick"]
				return err
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
	}
	seen := map[string]bool{}
	for range 4 {
		tick := locktest.Receive(t, ran)
		if at, err := time.Parse(time.RFC3339Nano, tick); seen[tick] || err != nil || at.Nanosecond() != 0 {
			t.Errorf("tick %q again, or %v", tick, err)
		}
		seen[tick] = true
	}
	cancel()
	replicas.Wait()
}

// TestCronsOwnDST: cron decides which ticks there are on days of 23 and 25 hours. Each of them runs
// once among two replicas.
func TestCronsOwnDST(t *testing.T) {
	t.Parallel()
	spec, err := cron.ParseStandard("CRON_TZ=Europe/Berlin 30 2 * * *")
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Database(t)
	for _, around := range []string{"2026-03-27T12:00:00Z", "2026-10-23T12:00:00Z"} {
		begin, err := time.Parse(time.RFC3339, around)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []time.Time
		for tick := spec.Next(begin); tick.Before(begin.AddDate(0, 0, 4)); tick = spec.Next(tick) {
			want = append(want, tick)
		}
		now := begin
		var replicas []*schedule.Job
		for range 2 {
			job, err := schedule.New(locktest.Client(t, url), "report", schedule.WithClock(func() time.Time { return now }))
			if err != nil {
				t.Fatal(err)
			}
			replicas = append(replicas, job)
		}
		none := func(context.Context, *pglock.Lease) error { return nil }
		if err := replicas[0].RunDue(t.Context(), spec, none); err != nil { // the tick before
			t.Fatal(err)
		}
		for ; now.Before(begin.AddDate(0, 0, 4)); now = now.Add(time.Hour) {
			for _, job := range replicas {
				tick, err := schedule.Due(spec, now)
				if err != nil {
					t.Fatal(err)
				}
				err = job.RunDue(t.Context(), spec, func(context.Context, *pglock.Lease) error { got = append(got, tick); return nil })
				if err != nil && !schedule.Done(err) {
					t.Error(err)
				}
			}
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("from %s: runs at %v, want %v", around, got, want)
		}
		t.Logf("ticks of cron: %v", want)
	}
}

// TestCronEveryIsRefused: cron.Every counts from the start of each process.
func TestCronEveryIsRefused(t *testing.T) {
	t.Parallel()
	job, err := schedule.New(locktest.Client(t, pgtest.Database(t)), "n")
	if err != nil {
		t.Fatal(err)
	}
	none := func(context.Context, *pglock.Lease) error { return nil }
	if err := job.Run(t.Context(), cron.Every(time.Hour), none); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("Run: %v", err)
	}
	if _, err := cronlock.Func(t.Context(), job, cron.Every(time.Hour), none); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("Func: %v", err)
	}
	every, err := cron.ParseStandard("@every 1h")
	if err != nil {
		t.Fatal(err)
	}
	if err := job.RunDue(t.Context(), every, none); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("RunDue: %v", err)
	}
	daily, err := cron.ParseStandard("@daily")
	if err != nil {
		t.Fatal(err)
	}
	if err := job.RunDue(t.Context(), daily, none); err != nil {
		t.Errorf("a daily schedule: %v", err)
	}
}
