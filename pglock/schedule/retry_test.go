package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// failing returns a function that fails so many times, and counts its calls.
func failing(failures int, calls *int) schedule.Func {
	return func(context.Context, *pglock.Lease) error {
		if *calls++; *calls <= failures {
			return fmt.Errorf("failure %d", *calls)
		}
		return nil
	}
}

// seen returns what an operator sees of the job.
func (f fleet) seen() inspect.Schedule {
	f.t.Helper()
	s, err := f.client().Snapshot(f.t.Context(), inspect.Query{})
	ok(f.t, err)
	if len(s.Schedules) != 1 {
		f.t.Fatalf("schedules are %+v", s.Schedules)
	}
	return s.Schedules[0]
}

// TestAFailedRunIsRepeated: as often as the option says, and then it counts. In the control there is no option.
func TestAFailedRunIsRepeated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failures, retries, calls int
		failed                   bool
	}{
		"succeeds at last": {2, 2, 3, false}, "fails too often": {9, 2, 3, true}, "control": {9, 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			opts := []schedule.Option{schedule.WithLogger(nil)}
			if tc.retries > 0 {
				opts = append(opts, schedule.WithRetry(tc.retries, time.Millisecond))
			}
			for what, run := range map[string]func(j *schedule.Job, fn schedule.Func) error{
				"OncePer": func(j *schedule.Job, fn schedule.Func) error { return j.OncePer(t.Context(), time.Second, fn) },
				"RunDue": func(j *schedule.Job, fn schedule.Func) error {
					return j.RunDue(t.Context(), schedule.Every(time.Hour), fn)
				},
			} {
				locktest.Exec(t, f.pool, "DELETE FROM "+f.table("fencing_high_water"))
				locktest.Exec(t, f.pool, "DELETE FROM "+f.table("scheduled_jobs"))
				calls := 0
				err := run(f.job(opts...), failing(tc.failures, &calls))
				if calls != tc.calls || (err != nil) != tc.failed || tc.failed && err.Error() != fmt.Sprint("failure ", calls) {
					t.Errorf("%s: %d calls, %v", what, calls, err)
				}
				s := f.seen()
				if tc.failed && (!s.Failed.Equal(s.Last) || s.Attempts != tc.calls || s.Error != fmt.Sprint("failure ", tc.calls)) || !tc.failed && (s.Attempts != 0 || s.Last.IsZero()) {
					t.Errorf("%s: the job is %+v", what, s)
				}
			}
			// The next tick begins a new count.
			calls := 0
			if err := f.job(opts...).Once(t.Context(), time.Now().Add(2*time.Second), failing(tc.retries, &calls)); err != nil || calls != tc.retries+1 {
				t.Errorf("the next tick: %d calls, %v", calls, err)
			}
		})
	}
}

// TestAnotherProcessRepeatsTheRun: the one that waits for the lease comes before the one that has failed, and knows
// the count. A process that dies in its attempt leaves the count as it is.
func TestAnotherProcessRepeatsTheRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	retry := schedule.WithRetry(2, time.Millisecond)
	tick := time.Now().Truncate(time.Second)
	r, err := f.job(retry).Begin(t.Context(), tick)
	ok(t, err)
	var order []string
	waiting := make(chan error, 1)
	go func() {
		waiting <- f.job(retry, schedule.WithLogger(nil)).Once(t.Context(), tick, func(context.Context, *pglock.Lease) error {
			order = append(order, "waiter")
			return errors.New("the waiter's")
		})
	}()
	pgtest.Eventually(t, "it waits", func() bool {
		return locktest.Scan[int](t, f.pool, "SELECT count(*) FROM "+f.table("lock_waiters")) == 1
	})
	again, err := r.Fail(t.Context(), errors.New("the first's\x00"+strings.Repeat("ü", 500)))
	if !again || err != nil {
		t.Fatalf("the first failure: %v, %v", again, err)
	}
	if err := <-waiting; err == nil || err.Error() != "the waiter's" || strings.Join(order, " ") != "waiter waiter" {
		t.Errorf("the waiter: %v, %v", err, order)
	}
	if s := f.seen(); s.Attempts != 3 || !s.Failed.Equal(tick) || !s.Last.Equal(tick) || s.Error != "the waiter's" {
		t.Errorf("the job is %+v", s)
	}
	// A process dies.
	next := tick.Add(time.Second)
	r, err = f.job(retry).Begin(t.Context(), next)
	ok(t, err)
	_, err = r.Fail(t.Context(), errors.New("the first's\x00"+strings.Repeat("ü", 500)))
	ok(t, err)
	if s := f.seen(); s.Attempts != 1 || !s.Failed.Equal(next) || !s.Last.Equal(tick) || len(s.Error) < 500 || len(s.Error) > 512 {
		t.Errorf("the job is %+v", s)
	}
	if _, err = f.jobOf(f.client(pglock.WithRenewEvery(0)), retry, schedule.WithTTL(time.Second)).Begin(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	calls := 0
	if err := f.job(retry, schedule.WithLogger(nil)).Once(t.Context(), next, failing(9, &calls)); err == nil || calls != 2 {
		t.Errorf("after the death: %d calls, %v", calls, err)
	}
}

// TestRepetitionsEndWithTheNextTick: a repetition that would begin after the next tick does not, and a backoff that
// leaves no time is refused. The pause doubles.
func TestRepetitionsEndWithTheNextTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	hour := time.Now().Truncate(time.Hour)
	at := func(d time.Duration) schedule.Option {
		return schedule.WithClock(func() time.Time { return hour.Add(d) })
	}
	hourly := schedule.Every(time.Hour)
	calls := 0
	if err := f.job(at(59*time.Minute), schedule.WithRetry(5, 2*time.Minute)).RunDue(t.Context(), hourly, failing(9, &calls)); err == nil || calls != 1 {
		t.Errorf("shortly before the next tick: %d calls, %v", calls, err)
	}
	for what, err := range map[string]error{
		"due": f.job(at(0), schedule.WithRetry(5, time.Hour)).RunDue(t.Context(), hourly, nothing),
		"Run": f.job(at(0), schedule.WithRetry(5, time.Hour)).Run(t.Context(), hourly, nothing),
	} {
		if !errors.Is(err, pglock.ErrInvalidOption) || !strings.Contains(err.Error(), "must be less, so that a failed run is repeated before the next tick") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for failures, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
		if got := f.job(schedule.WithRetry(5, time.Second)).PauseAfter(failures); got != want {
			t.Errorf("the pause after %d failures is %v", failures, got)
		}
	}
	if pause := f.job(schedule.WithRetry(100, time.Second)).PauseAfter(100); pause < 24*time.Hour || pause > 48*time.Hour {
		t.Errorf("the pause becomes %v", pause)
	}
}

// TestChaosFailingRunners: processes fail, panic and stop in the middle of a run. Each tick is recorded once, none is
// lost, and none runs more often than its failures allow, nor beside another one. In the control each process has a
// job of its own.
func TestChaosFailingRunners(t *testing.T) {
	t.Parallel()
	ticks := 12
	if os.Getenv("PGLOCK_CHAOS") != "" {
		ticks = 300
	}
	for name, shared := range map[string]bool{"one job": true, "control": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if wrong := chaos(newFleet(t), ticks, shared); (len(wrong) == 0) != shared {
				t.Errorf("wrong: %q", wrong)
			}
		})
	}
}

// chaos has four processes run the ticks, and returns what is wrong.
func chaos(f fleet, ticks int, shared bool) (wrong []string) {
	const retries = 2
	base := time.Now().Add(-time.Duration(ticks) * time.Second).Truncate(time.Second)
	var mu sync.Mutex // guards all below
	running, succeeded, failed := 0, map[string]int{}, map[string]int{}
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	run := func(ctx context.Context, l *pglock.Lease, end func()) error {
		tick, _ := schedule.TickFromContext(ctx)
		key := tick.UTC().String()
		mu.Lock()
		if running++; running != 1 {
			complain("%d runs at once", running)
		}
		if failed[key] > retries || succeeded[key] > 0 {
			complain("%s runs after %d failures and %d runs", key, failed[key], succeeded[key])
		}
		fate := rand.IntN(6)
		if fate < 3 {
			failed[key]++
		}
		mu.Unlock()
		defer func() { mu.Lock(); defer mu.Unlock(); running-- }()
		if !shared { // long enough to meet others
			_, _ = f.pool.Exec(ctx, "SELECT pg_sleep(0.05)")
		}
		switch fate {
		case 0, 1:
			return errors.New("a failure of the test")
		case 2:
			panic("of the test")
		case 3: // the process stops
			end()
			return ctx.Err()
		}
		err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return l.Guard(ctx, tx) })
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			succeeded[key]++
		}
		return err
	}
	var processes sync.WaitGroup
	for n := range 4 {
		name := "report"
		if !shared {
			name = fmt.Sprint("report ", n)
		}
		job, err := schedule.New(f.client(pglock.WithLogger(nil)), name, schedule.WithRetry(retries, time.Millisecond), schedule.WithWait(pgtest.Patience), schedule.WithLogger(nil))
		ok(f.t, err)
		processes.Go(func() {
			for i := range ticks {
				for f.t.Context().Err() == nil && !attempt(f.t, job, base.Add(time.Duration(i)*time.Second), run) {
				}
			}
		})
	}
	processes.Wait()
	for i := range ticks {
		key := base.Add(time.Duration(i) * time.Second).UTC().String()
		if gaveUp := failed[key] == retries+1; succeeded[key] != 1 && !gaveUp || gaveUp && succeeded[key] > 0 {
			complain("%s: %d runs that succeeded, and %d that failed", key, succeeded[key], failed[key])
		}
	}
	return wrong
}

// attempt runs the tick, and reports whether it was run, here or elsewhere. The function may end its context.
func attempt(t *testing.T, job *schedule.Job, tick time.Time, fn func(ctx context.Context, l *pglock.Lease, end func()) error) (done bool) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	defer func() { _ = recover() }() // of the test
	err := job.Once(ctx, tick, func(ctx context.Context, l *pglock.Lease) error { return fn(ctx, l, end) })
	return err == nil || errors.Is(err, schedule.ErrDone) || ctx.Err() == nil && !errors.Is(err, pglock.ErrLost)
}
