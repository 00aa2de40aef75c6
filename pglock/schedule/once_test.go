package schedule_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

func nothing(context.Context, *pglock.Lease) error { return nil }

// TestATickIsRunOnce: whether the run succeeded, failed or panicked.
func TestATickIsRunOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one, other := f.job(), f.job()
	tick := time.Now().Truncate(time.Second)
	mine := errors.New("mine")
	if err := one.Once(t.Context(), tick, func(ctx context.Context, _ *pglock.Lease) error {
		if got, ok := schedule.TickFromContext(ctx); !ok || !got.Equal(tick) {
			t.Errorf("the context has the tick %v, %v, want %v", got, ok, tick)
		}
		return mine
	}); !errors.Is(err, mine) || errors.Is(err, schedule.ErrDone) {
		t.Errorf("the function's error: %v", err)
	}
	for _, job := range []*schedule.Job{one, other} {
		for _, again := range []time.Time{tick, tick.Add(-time.Microsecond), tick.Add(-time.Hour)} {
			if err := job.Once(t.Context(), again, func(context.Context, *pglock.Lease) error { t.Error("it ran again"); return nil }); !errors.Is(err, schedule.ErrDone) {
				t.Errorf("the tick %v again: %v", again.Sub(tick), err)
			}
		}
	}
	func() {
		defer func() {
			if recover() != "oh" {
				t.Error("the panic was swallowed")
			}
		}()
		_ = one.Once(t.Context(), tick.Add(time.Microsecond), func(context.Context, *pglock.Lease) error { panic("oh") })
	}()
	if err := other.Once(t.Context(), tick.Add(time.Microsecond), nothing); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("after a panic: %v", err)
	}
	if err := other.Once(t.Context(), tick.Add(time.Second), nothing); err != nil {
		t.Errorf("the next tick: %v", err)
	}
}

// TestAnInterruptedTickIsRunByAnother: the context of the run is done, as when a service stops.
func TestAnInterruptedTickIsRunByAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	err := f.job().Once(ctx, tick, func(ctx context.Context, _ *pglock.Lease) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cut off: %v", err)
	}
	if err := f.job().Once(t.Context(), tick, nothing); err != nil {
		t.Errorf("by another: %v", err)
	}
}

// TestI4_ALostTickIsRunByAnother: the context of the run is done, and the run can't record the
// tick.
func TestI4_ALostTickIsRunByAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now().Truncate(time.Second)
	began, end := make(chan struct{}), make(chan error, 1)
	slow := f.job(schedule.WithTTL(time.Second))
	go func() {
		end <- slow.Once(t.Context(), tick, func(ctx context.Context, _ *pglock.Lease) error {
			close(began)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), pglock.ErrLost) {
				t.Errorf("the cause: %v", context.Cause(ctx))
			}
			return nil
		})
	}()
	<-began
	waiting := make(chan error, 1)
	other := f.job()
	go func() { waiting <- other.Once(t.Context(), tick, f.note(func() time.Time { return tick }, 2)) }()
	f.expire()
	if err := <-end; !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the one that lost it: %v", err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
	// The database refuses a run that does not know of its loss.
	r, err := slow.Begin(t.Context(), tick.Add(time.Second))
	ok(t, err)
	locktest.Exec(t, f.pool, "UPDATE "+f.table("distributed_locks")+" SET token = token + 1000 WHERE holder IS NOT NULL")
	if err := r.End(t.Context()); err == nil {
		t.Error("a stale run was recorded")
	}
	f.expire()
	if err := other.Once(t.Context(), tick.Add(time.Second), nothing); err != nil {
		t.Errorf("its tick, by another: %v", err)
	}
}

// TestI1_P42_TicksNeverOverlap: a tick that is due while another one runs waits for it, or is
// skipped.
func TestI1_P42_TicksNeverOverlap(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now().Truncate(time.Second)
	first, second, hasty := f.job(), f.job(), f.job(schedule.WithWait(0))
	var mu sync.Mutex
	var order []string
	say := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	end := make(chan error, 1)
	err := first.Once(t.Context(), tick, func(context.Context, *pglock.Lease) error {
		go func() {
			end <- second.Once(t.Context(), tick.Add(time.Second), func(context.Context, *pglock.Lease) error { say("second"); return nil })
		}()
		var busy *pglock.BusyError
		if err := hasty.Once(t.Context(), tick.Add(time.Second), nothing); !errors.As(err, &busy) || !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("who does not wait: %v", err)
		}
		say("first")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	ok(t, <-end)
	if got := strings.Join(order, " "); got != "first second" {
		t.Errorf("they ran %s", got)
	}
	// The control: without the job, the second tick runs while the first one runs.
	order = nil
	overlapped := make(chan struct{})
	go func() { say("second"); close(overlapped) }()
	<-overlapped
	say("first")
	if got := strings.Join(order, " "); got == "first second" {
		t.Error("control: they did not overlap")
	}
}

// TestP39_AClockThatIsAhead: a machine whose clock is ahead does not mark future ticks as run.
func TestP39_AClockThatIsAhead(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.job()
	if err := job.Once(t.Context(), time.Now().Add(2*time.Minute), nothing); !errors.Is(err, schedule.ErrClock) {
		t.Errorf("two minutes: %v", err)
	}
	if err := job.Once(t.Context(), time.Now().Add(30*time.Second), nothing); err != nil {
		t.Errorf("half a minute: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.job()
	client := locktest.Open(t, f.pool, pglock.WithSchema(f.schema))
	for name, o := range map[string]schedule.Option{
		"TTL": schedule.WithTTL(0), "wait": schedule.WithWait(-1), "report": schedule.WithReport(nil), "clock": schedule.WithClock(nil),
		"lateness": schedule.WithMaxLate(0),
	} {
		if _, err := schedule.New(client, "n", o); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := schedule.New(nil, "n"); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no client: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", 502)} {
		if _, err := schedule.New(client, name); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	for name, err := range map[string]error{
		"no function":       job.Once(t.Context(), time.Now(), nil),
		"no function, loop": job.Run(t.Context(), schedule.Every(time.Second), nil),
		"no period":         job.Run(t.Context(), schedule.Every(0), nothing),
		"no period, due":    job.RunDue(t.Context(), schedule.Every(0), nothing),
		"no schedule":       job.Run(t.Context(), nil, nothing),
		"no time of day":    job.Run(t.Context(), schedule.Daily("3", time.UTC), nothing),
		"no location":       job.Run(t.Context(), schedule.Daily("03:00", nil), nothing),
		"a fixed delay":     job.Run(t.Context(), delay(time.Hour), nothing),
		"once per nothing":  job.OncePer(t.Context(), 0, nothing),
		"the zero time":     job.Once(t.Context(), time.Time{}, nothing),
	} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, client.Close(t.Context()))
	closed, err := schedule.New(client, "n")
	ok(t, err)
	if err := closed.Once(t.Context(), time.Now(), nothing); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("a closed client: %v", err)
	}
	if err := closed.Run(t.Context(), schedule.Every(time.Hour), nothing); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("a closed client, loop: %v", err)
	}
}
