package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// clockAt returns a clock that shows that time when it is first looked at: when Run begins, however
// long this machine takes to open a client.
func clockAt(at time.Time) func() time.Time {
	ahead := sync.OnceValue(func() time.Duration { return time.Until(at) })
	return func() time.Time { return time.Now().Add(ahead()) }
}

// result is what a replica says of a tick: nil if it ran it, ErrDone or ErrRunning if another one
// did, or a failure.
type result struct {
	replica int
	tick    time.Time
	err     error
}

// replicas run a schedule until the test stops them.
type replicas struct {
	fleet
	ctx     context.Context // of all replicas
	stop    func()          // returns when all of them have ended
	running *sync.WaitGroup
	results chan result
}

func (f fleet) replicas() replicas {
	ctx, cancel := context.WithCancel(f.t.Context())
	r := replicas{f, ctx, nil, &sync.WaitGroup{}, make(chan result, 100)}
	r.stop = func() { cancel(); r.running.Wait() }
	f.t.Cleanup(cancel)
	return r
}

// start starts replica n with a clock of its own, which the test sets.
func (r replicas) start(n int, clock func() time.Time, s schedule.Schedule, fn schedule.Func, opts ...schedule.Option) {
	r.t.Helper()
	logged := make(chan slog.Record, 1000)
	job := r.job(append(opts, schedule.WithClock(clock), schedule.WithLogger(slog.New(locktest.Records(logged))),
		schedule.WithReport(func(tick time.Time, err error) { r.results <- result{n, tick, err} }))...)
	r.running.Go(func() {
		if err := job.Run(r.ctx, s, fn); !errors.Is(err, context.Canceled) {
			r.t.Errorf("replica %d: %v", n, err)
		}
		close(logged)
	})
	go func() {
		for line := range logged {
			if line.Level == slog.LevelDebug {
				r.results <- result{n, locktest.Attr[time.Time](line, "tick"), locktest.Error(line)}
			}
		}
	}()
}

// next returns the next result of any replica.
func (r replicas) next() result { r.t.Helper(); return locktest.Receive(r.t, r.results) }

// noteTick records the tick that runs, as its lease says.
func (f fleet) noteTick(n int) schedule.Func {
	return func(ctx context.Context, l *pglock.Lease) error {
		tick, err := f.tickOf(ctx)
		if err != nil {
			return err
		}
		return f.note(func() time.Time { return tick }, n)(ctx, l)
	}
}

// TestNightlyTickRunsOnceAlthoughClocksDiffer: three replicas whose clocks differ by seconds run a
// daily tick once, and the tick in the database is the scheduled time.
func TestNightlyTickRunsOnceAlthoughClocksDiffer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	three := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC) // the end of the gap that has 02:30
	nightly := schedule.Daily("02:30", location(t, "Europe/Berlin"))
	all := f.replicas()
	for n, ahead := range []time.Duration{-1500 * time.Millisecond, 0, 800 * time.Millisecond} {
		all.start(n, clockAt(three.Add(ahead-time.Second)), nightly, f.noteTick(n))
	}
	ran := 0
	for range 3 {
		r := all.next()
		if r.err == nil {
			ran++
		} else if !errors.Is(r.err, schedule.ErrDone) {
			t.Errorf("replica %d: %v", r.replica, r.err)
		}
		if !r.tick.Equal(three) {
			t.Errorf("replica %d: the tick is %v, want %v", r.replica, r.tick, three)
		}
	}
	all.stop()
	if got := f.ran(); ran != 1 || got.runs != 1 || !got.last.Equal(three) {
		t.Errorf("%d replicas say that they ran it, %d runs, the last one of %v", ran, got.runs, got.last)
	}
}

// TestMissedTick: all replicas were down for three ticks. The latest one runs late, once.
func TestMissedTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	nightly := schedule.Daily("03:00", time.UTC)
	last := time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)
	ok(t, f.job().Once(t.Context(), last, nothing))
	up := last.AddDate(0, 0, 3).Add(6 * time.Hour)
	both := make(chan struct{})
	all := f.replicas()
	for n := range 2 {
		all.start(n, clockAt(up), nightly, func(ctx context.Context, l *pglock.Lease) error {
			<-both
			return f.noteTick(n)(ctx, l)
		})
	}
	pgtest.Eventually(t, "one replica waits for the other", func() bool {
		return locktest.Scan[int](t, f.pool, "SELECT count(*) FROM "+f.table("lock_waiters")) == 1
	})
	close(both)
	for range 2 {
		if r := all.next(); r.err != nil && !errors.Is(r.err, schedule.ErrDone) {
			t.Error(r.err)
		}
	}
	all.stop()
	if got := f.ran(); got.runs != 1 || !got.last.Equal(last.AddDate(0, 0, 3)) {
		t.Errorf("%d runs, the last one of %v", got.runs, got.last)
	}
}

// TestFirstStartRunsNoOldTick: where the job never ran, the first tick is the one after the start.
func TestFirstStartRunsNoOldTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	start := time.Date(2026, 5, 1, 2, 59, 59, 0, time.UTC)
	all := f.replicas()
	all.start(1, clockAt(start), schedule.Daily("03:00", time.UTC), f.noteTick(1))
	if r := all.next(); r.err != nil || !r.tick.Equal(start.Add(time.Second)) {
		t.Errorf("got %+v", r)
	}
	all.stop()
}

// TestMaxLate: a tick that is later than allowed is reported and not run, unless it was run.
func TestMaxLate(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.job(schedule.WithMaxLate(time.Hour))
	old := time.Now().Add(-61 * time.Minute)
	if err := job.Once(t.Context(), old, nothing); !errors.Is(err, schedule.ErrMissed) {
		t.Errorf("61 minutes late: %v", err)
	}
	if err := job.Once(t.Context(), old.Add(2*time.Minute), nothing); err != nil {
		t.Errorf("59 minutes late: %v", err)
	}
	if err := job.Once(t.Context(), old, nothing); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("late, and before one that was run: %v", err)
	}
	all := f.replicas()
	late := list{time.Now().Add(-58 * time.Minute), time.Now().Add(-57 * time.Minute), time.Now().Add(time.Hour)}
	all.start(1, time.Now, late, f.noteTick(1), schedule.WithMaxLate(time.Minute))
	if r := all.next(); !errors.Is(r.err, schedule.ErrMissed) || !r.tick.Equal(late[1]) {
		t.Errorf("in the loop: %+v", r)
	}
	all.stop()
	if got := f.ran(); got.runs != 0 {
		t.Errorf("%d runs", got.runs)
	}
}

// hooked is a schedule that calls a function when Run begins with a tick, for the first time.
type hooked struct {
	list
	tick  time.Time
	begin func()
}

func (h hooked) Next(t time.Time) time.Time {
	if t.Equal(h.tick) {
		h.begin()
	}
	return h.list.Next(t)
}

// TestTickIsTriedAgain: the database is unreachable when Run begins, or when the tick is due, and
// comes back.
func TestTickIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"at the start", "at the tick"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			u, err := url.Parse(pgtest.URL(t))
			ok(t, err)
			proxy := faultproxy.New(t, u.Host)
			behind := f
			behind.pool = pgtest.PoolOn(t, proxy.URL(u.String()))
			tick := time.Now().Truncate(time.Second)
			ok(t, f.job().Once(t.Context(), tick.Add(-time.Minute), nothing))
			stop := sync.OnceFunc(func() {
				proxy.Refuse(true)
				proxy.Sever()
			})
			clock, begin := clockAt(tick.Add(-time.Second)), stop
			if when == "at the start" { // Run looks at the clock first
				shifted := clock
				clock, begin = func() time.Time { stop(); return shifted() }, func() {}
			}
			all := behind.replicas()
			ticks := hooked{list{tick.Add(-time.Minute), tick, tick.Add(24 * time.Hour)}, tick, begin}
			all.start(1, clock, ticks, f.noteTick(1))
			if r := all.next(); r.err == nil {
				t.Errorf("while it is unreachable: %+v", r)
			}
			proxy.Refuse(false)
			r := all.next()
			for r.err != nil { // the tick's own first failure, if the mark could be read
				r = all.next()
			}
			if !r.tick.Equal(tick) {
				t.Errorf("the tick is %v, want %v", r.tick, tick)
			}
			all.stop()
			if got := f.ran(); got.runs != 1 {
				t.Errorf("%d runs", got.runs)
			}
		})
	}
}

// TestLostTickIsRunAgain: the only replica loses the lease of a tick. It runs the tick again.
func TestLostTickIsRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now()
	all := f.replicas()
	lost := false
	all.start(1, clockAt(tick.Add(-time.Second)), list{tick, tick.Add(time.Hour)}, func(ctx context.Context, l *pglock.Lease) error {
		if !lost {
			lost = true
			f.expire()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return f.noteTick(1)(ctx, l)
	}, schedule.WithTTL(5*time.Second))
	if r := all.next(); !errors.Is(r.err, pglock.ErrLost) {
		t.Errorf("the first attempt: %+v", r)
	}
	if r := all.next(); r.err != nil {
		t.Errorf("the second attempt: %+v", r)
	}
	all.stop()
	if got := f.ran(); got.runs != 1 || got.last.Sub(tick).Abs() > time.Millisecond {
		t.Errorf("%+v", got)
	}
}

// TestARunnerThatDiesLate: the other replicas wait for a tick until the next one is due, so that a
// runner that dies after hours is replaced.
func TestARunnerThatDiesLate(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	now := time.Now()
	hourly := list{now, now.Add(time.Hour)}
	job := f.job(schedule.WithClock(func() time.Time { return now }), schedule.WithTTL(time.Second))
	if got := job.WaitFor(hourly, now); got != time.Hour {
		t.Errorf("it waits for %v", got)
	}
	if got := job.WaitFor(list{now, now.Add(time.Second)}, now); got != 6*time.Second {
		t.Errorf("with frequent ticks it waits for %v", got)
	}
	if got := f.job(schedule.WithWait(time.Minute)).WaitFor(hourly, now); got != time.Minute {
		t.Errorf("with WithWait it waits for %v", got)
	}
	// A waiter replaces a runner that has died.
	clock := clockAt(now.Add(time.Second))
	dead := f.jobOf(f.client(pglock.WithRenewEvery(0)), schedule.WithTTL(time.Second))
	if _, err := dead.Begin(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if err := f.job(schedule.WithClock(clock)).RunDue(t.Context(), hourly, f.noteTick(2)); err != nil {
		t.Errorf("the waiter: %v", err)
	}
	if got := f.ran(); got.runs != 1 {
		t.Errorf("%+v", got)
	}
}

// TestLongJobOverlapsTheNextTick: the next tick waits for the end of the one before it, and then
// runs late, once.
func TestLongJobOverlapsTheNextTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now()
	ticks := list{tick, tick.Add(500 * time.Millisecond), tick.Add(time.Hour)}
	all := f.replicas()
	var mu sync.Mutex
	running := 0
	for n := range 2 {
		clock := clockAt(tick.Add(-500 * time.Millisecond))
		all.start(n, clock, ticks, func(ctx context.Context, l *pglock.Lease) error {
			mu.Lock()
			running++
			if running != 1 {
				t.Error("two ticks run at once")
			}
			mu.Unlock()
			defer func() { mu.Lock(); running--; mu.Unlock() }()
			locktest.WaitUntilPast(time.Now().Add(tick.Add(time.Second).Sub(clock()))) // the next tick has been due for half a second
			return f.noteTick(n)(ctx, l)
		})
	}
	for ran := 0; ran < 2; {
		if r := all.next(); r.err == nil {
			ran++
		} else if !errors.Is(r.err, schedule.ErrDone) && !errors.Is(r.err, schedule.ErrRunning) {
			t.Errorf("%+v", r)
		}
	}
	all.stop()
	if got := f.ran(); got.runs != 2 || got.distinct != 2 {
		t.Errorf("%+v", got)
	}
}

// TestOncePer: the period is measured by the database's clock. A run may begin 10 s early.
func TestOncePer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const period = 24 * time.Hour
	ahead := f.job(schedule.WithClock(func() time.Time { return time.Now().AddDate(1, 0, 0) }))
	other := f.job()
	age := func(d time.Duration) { // as if the last run had begun earlier
		t.Helper()
		locktest.Exec(t, f.pool, "UPDATE "+f.table("fencing_high_water")+" SET token = token - $1", d.Microseconds())
	}
	runs := 0
	run := func(what string, job *schedule.Job, want error) {
		t.Helper()
		err := job.OncePer(t.Context(), period, func(context.Context, *pglock.Lease) error { runs++; return nil })
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	run("the first one", ahead, nil)
	run("at once again", ahead, schedule.ErrDone)
	run("elsewhere", other, schedule.ErrDone)
	age(period - 15*time.Second - time.Minute) // a minute for a slow test
	run("too early", other, schedule.ErrDone)
	age(time.Minute + 6*time.Second)
	run("nine seconds early", ahead, nil)
	run("again", other, schedule.ErrDone)
	age(2 * period)
	ok(t, other.Once(t.Context(), time.Now(), nothing))
	run("after a tick", other, schedule.ErrDone)
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

// TestAbandonedPeriod: a run that was abandoned does not count, and another call that has waited
// begins it.
func TestAbandonedPeriod(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r, err := f.job().BeginPer(t.Context(), time.Hour)
	ok(t, err)
	if _, err := f.job(schedule.WithWait(0)).BeginPer(t.Context(), time.Hour); !errors.Is(err, schedule.ErrRunning) {
		t.Errorf("while it runs: %v", err)
	}
	end := make(chan error, 1)
	waiter := f.job()
	go func() { end <- waiter.OncePer(t.Context(), time.Hour, nothing) }()
	ok(t, r.Abandon(t.Context()))
	if err := locktest.Receive(t, end); err != nil {
		t.Errorf("the one that waited: %v", err)
	}
}

// TestLabels: labels of the caller stand beside the tick.
func TestLabels(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r, err := f.job(schedule.WithLabels(map[string]string{"team": "a", "tick": "no"})).Begin(t.Context(), time.Unix(1e9, 0))
	ok(t, err)
	if got := locktest.Scan[string](t, f.pool, "SELECT labels::text FROM "+f.table("distributed_locks")+" WHERE holder IS NOT NULL"); got != `{"team": "a", "tick": "2001-09-09T01:46:40Z"}` {
		t.Errorf("labels %s", got)
	}
	ok(t, r.Abandon(t.Context()))
}
