package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// distant has a tick an hour ago and one in an hour.
func distant() list {
	now := time.Now().Truncate(time.Second)
	return list{now.Add(-time.Hour), now.Add(time.Hour)}
}

// TestTrigger: one of the processes that serve the job runs it once more, recorded under the time of the call, also
// before its first tick. The ticks of the schedule are as they were.
func TestTrigger(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	operator := f.job()
	if _, err := operator.Trigger(t.Context(), ""); !errors.Is(err, pglock.ErrNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
	all, ticks := f.replicas(), distant()
	running, end := make(chan struct{}), make(chan struct{})
	for n := range 3 {
		all.start(n, time.Now, ticks, func(ctx context.Context, l *pglock.Lease) error {
			running <- struct{}{}
			<-end
			return f.noteTick(n)(ctx, l)
		})
	}
	var want time.Time
	pgtest.Eventually(t, "the job is known", func() (known bool) {
		tick, err := operator.Trigger(t.Context(), "")
		want = tick
		return err == nil
	})
	if again, err := operator.Trigger(t.Context(), ""); err != nil || !again.Equal(want) {
		t.Errorf("while it is pending: %v, %v", again, err)
	}
	if s := f.seen(); !s.Triggered.Equal(want) {
		t.Errorf("while it is pending: %+v", s)
	}
	locktest.Receive(t, running)
	if _, err := operator.Trigger(t.Context(), ""); !errors.Is(err, schedule.ErrRunning) || !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("while it runs: %v", err)
	}
	close(end)
	if r := all.next(); !r.tick.Equal(want) || r.err != nil && !errors.Is(r.err, schedule.ErrDone) {
		t.Errorf("got %+v, want %v", r, want)
	}
	pgtest.Eventually(t, "it is recorded", func() bool { return f.seen().Running.IsZero() })
	if s := f.seen(); !s.Last.Equal(want) || !s.Triggered.IsZero() || !s.Next.Equal(ticks[1]) {
		t.Errorf("after it: %+v", s)
	}
	if got := f.ran(); got.runs != 1 || !got.last.Equal(want) {
		t.Errorf("%+v", got)
	}
	all.stop()
}

// TestATriggerIsRecorded once, with its reason. A tick that was written in the future keeps nobody from
// triggering the job, unless it is the last tick, with which the job does not run at all.
func TestATriggerIsRecorded(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	operator := f.job()
	for _, reason := range []string{"\x00", "\xff", strings.Repeat("x", 513)} {
		if _, err := operator.Trigger(t.Context(), reason); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%.9q: %v", reason, err)
		}
	}
	locktest.Exec(t, f.pool, "INSERT INTO "+f.table("scheduled_jobs")+" (job, triggered) VALUES ('report', $1)", int64(math.MaxInt64))
	var tick time.Time
	for range 2 {
		var err error
		tick, err = operator.Trigger(t.Context(), "the report was empty (by alice)")
		if locktest.OK(t, err); time.Until(tick) > time.Minute {
			t.Errorf("the tick is %v", tick)
		}
	}
	if _, err := operator.Trigger(t.Context(), ""); err != nil {
		t.Error(err)
	}
	want := "triggered: tick " + tick.UTC().Format("2006-01-02T15:04:05.000000Z")
	if got := locktest.Scan[string](t, f.pool, "SELECT string_agg(action || ': ' || reason, '; ' ORDER BY id) FROM "+f.table("operator_actions")); got != want+": the report was empty (by alice); "+want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, mark := range []int64{math.MaxInt64, time.Now().Add(time.Hour).UnixMicro()} {
		locktest.Exec(t, f.pool, "DELETE FROM "+f.table("fencing_high_water"))
		locktest.Exec(t, f.pool, "INSERT INTO "+f.table("fencing_high_water")+" VALUES ('last tick: report', $1)", mark)
		if _, err := operator.Trigger(t.Context(), ""); !errors.Is(err, schedule.ErrClock) {
			t.Errorf("a last tick at %d: %v", mark, err)
		}
	}
}

// TestTriggerFromATimer: RunDue runs the extra tick when its own was run, and once. The tick of the schedule is
// neither lost nor repeated.
func TestTriggerFromATimer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	hour := time.Now().Truncate(time.Hour)
	var ran []string
	due := func(at time.Time, want error) {
		t.Helper()
		var reported time.Time
		job := f.job(schedule.WithClock(func() time.Time { return at }), schedule.WithLogger(nil), schedule.WithReport(func(tick time.Time, _ error) { reported = tick }))
		err := job.RunDue(t.Context(), schedule.In(schedule.Every(time.Hour), time.UTC), func(ctx context.Context, _ *pglock.Lease) error {
			tick, _ := schedule.TickFromContext(ctx)
			ran = append(ran, map[bool]string{true: "hour", false: "extra"}[tick.Equal(tick.Truncate(time.Hour))])
			if !tick.Equal(at.Truncate(time.Hour)) && tick.Equal(tick.Truncate(time.Hour)) {
				t.Errorf("the tick is %v", tick)
			}
			return nil
		})
		if !errors.Is(err, want) || err == nil && reported.IsZero() {
			t.Errorf("at %v: %v, reported %v", at, err, reported)
		}
	}
	trigger := func(ago time.Duration) { // as if it had been then
		t.Helper()
		_, err := f.job().Trigger(t.Context(), "")
		ok(t, err)
		locktest.Exec(t, f.pool, "UPDATE "+f.table("scheduled_jobs")+" SET triggered = $1", hour.Add(-ago).UnixMicro())
	}
	due(hour.Add(-3*time.Hour), nil)
	trigger(150 * time.Minute)
	due(hour.Add(-145*time.Minute), nil)              // the extra one
	due(hour.Add(-140*time.Minute), schedule.ErrDone) // once
	due(hour.Add(-2*time.Hour), nil)
	trigger(90 * time.Minute)
	due(hour.Add(-121*time.Minute), schedule.ErrDone) // a clock that has not reached the hour
	due(hour.Add(-59*time.Minute), nil)               // the next tick counts for it
	due(hour.Add(-58*time.Minute), schedule.ErrDone)
	trigger(30 * time.Minute)
	due(hour, nil)
	due(hour, schedule.ErrDone)
	if want := []string{"hour", "extra", "hour", "hour", "hour"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

// TestATickComesBeforeItsTrigger: a process whose clock is behind does not run an extra tick before the tick of the
// schedule, which would pass for done. A repetition of a failed extra tick is its own.
func TestATickComesBeforeItsTrigger(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	hour := time.Now().Truncate(time.Hour)
	ok(t, f.job().Once(t.Context(), hour.Add(-time.Hour), nothing))
	var ran []string
	calls := 0
	run := func(ctx context.Context, _ *pglock.Lease) error {
		tick, _ := schedule.TickFromContext(ctx)
		if tick.Equal(hour) {
			ran = append(ran, "hour")
			return nil
		}
		calls++
		ran = append(ran, fmt.Sprint("extra ", calls))
		if calls == 1 {
			return errors.New("a failure of the test")
		}
		return nil
	}
	_, err := f.job().Trigger(t.Context(), "")
	ok(t, err)
	hourly := schedule.Every(time.Hour)
	at := func(d time.Duration) *schedule.Job {
		return f.job(schedule.WithRetry(1, time.Millisecond), schedule.WithClock(func() time.Time { return hour.Add(d) }), schedule.WithLogger(nil))
	}
	if err := at(-time.Minute).RunDue(t.Context(), hourly, run); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("a clock that is behind: %v", err)
	}
	ok(t, at(0).RunDue(t.Context(), hourly, run))
	ok(t, at(0).RunDue(t.Context(), hourly, run))
	if want := []string{"hour", "extra 1", "extra 2"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

// TestChaosTriggers: processes whose clocks differ look for ticks, while an operator triggers the job, and some runs fail
// or stop. No tick runs twice, none of the schedule is passed over by an extra one, and none of these is lost. In the
// control the operator runs the extra ticks at once.
func TestChaosTriggers(t *testing.T) {
	t.Parallel()
	took := 4 * time.Second
	if os.Getenv("PGLOCK_CHAOS") != "" {
		took = time.Minute
	}
	for name, control := range map[string]bool{"triggers": false, "control": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if wrong := triggered(newFleet(t), took, control); (len(wrong) > 0) != control {
				t.Errorf("wrong: %q", wrong)
			}
		})
	}
}

// triggered has three processes run a job for that time, and returns what is wrong.
func triggered(f fleet, took time.Duration, atOnce bool) (wrong []string) {
	const period = 250 * time.Millisecond
	ctx, stop := context.WithCancel(f.t.Context())
	begin := time.Now().Truncate(period)
	ok(f.t, f.job().Once(ctx, begin, nothing))
	var mu sync.Mutex // guards ran and wrong
	ran := map[time.Time]int{begin.UTC(): 1}
	run := func(ctx context.Context, _ *pglock.Lease) error {
		tick, _ := schedule.TickFromContext(ctx)
		tick = tick.UTC()
		mu.Lock()
		defer mu.Unlock()
		before := tick.Truncate(period)
		if !tick.Equal(before) && ran[before] == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(ran)), before.Before) {
			wrong = append(wrong, fmt.Sprintf("%v runs before the tick %v", tick, before))
		}
		if ran[tick]++; ran[tick] > 1 {
			wrong = append(wrong, fmt.Sprintf("%v runs again", tick))
		}
		if rand.IntN(4) == 0 {
			return errors.New("a failure of the test")
		}
		return nil
	}
	var processes sync.WaitGroup
	for n := range 3 {
		behind := time.Duration(n) * period / 3
		client := f.client(pglock.WithLogger(nil))
		processes.Go(func() {
			job := f.jobOf(client, schedule.WithClock(func() time.Time { return time.Now().Add(-behind) }), schedule.WithLogger(nil))
			for ctx.Err() == nil {
				mine, end := context.WithCancel(ctx)
				_ = job.RunDue(mine, schedule.Every(period), func(ctx context.Context, l *pglock.Lease) error {
					if rand.IntN(8) == 0 { // it stops before it has done anything
						end()
						return ctx.Err()
					}
					return run(ctx, l)
				})
				end()
				locktest.WaitUntilPast(time.Now().Add(rand.N(period / 2)))
			}
		})
	}
	var extra []time.Time
	shown := func() bool { // an extra tick has run, or the control has shown its mistake
		mu.Lock()
		defer mu.Unlock()
		return len(wrong) > 0 || slices.ContainsFunc(extra, func(tick time.Time) bool { return ran[tick] > 0 })
	}
	for operator := f.job(schedule.WithLogger(nil)); !atOnce && time.Since(begin) < took || !shown() && time.Since(begin) < pgtest.Patience; locktest.WaitUntilPast(time.Now().Add(rand.N(period))) {
		if atOnce {
			_ = operator.Once(ctx, time.Now(), run)
		} else if tick, err := operator.Trigger(ctx, ""); err == nil {
			extra = append(extra, tick.UTC())
		}
	}
	last := time.Now().Add(period)
	pgtest.Eventually(f.t, "a tick after the last trigger has run", func() bool { return f.seen().Last.After(last) })
	stop()
	processes.Wait()
	for _, tick := range extra {
		if ran[tick] == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(ran)), tick.Before) {
			wrong = append(wrong, fmt.Sprintf("%v is lost", tick))
		}
	}
	if !shown() {
		wrong = append(wrong, "no extra tick has run")
	}
	return wrong
}
