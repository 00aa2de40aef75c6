package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// cronLike is a schedule at half past midnight in the zone of its argument, as a parsed cron expression.
type cronLike struct{}

func (cronLike) Next(t time.Time) time.Time {
	year, month, day := t.Date()
	for {
		if tick := time.Date(year, month, day, 0, 30, 0, 0, t.Location()); tick.After(t) {
			return tick
		}
		day++
	}
}

// machines returns a function that looks for a due tick on a machine in that zone at that time, four days ago.
func machines(f fleet, of func(*time.Location) schedule.Schedule) func(zone *time.Location, at time.Duration) (ran bool, err error) {
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(-96 * time.Hour)
	return func(zone *time.Location, at time.Duration) (ran bool, err error) {
		var reported error
		job := f.job(schedule.WithClock(func() time.Time { return midnight.Add(at).In(zone) }), schedule.WithLogger(nil),
			schedule.WithReport(func(_ time.Time, err error) { reported = err }))
		err = job.RunDue(f.t.Context(), of(zone), func(context.Context, *pglock.Lease) error { ran = true; return nil })
		if !schedule.Done(err) && !errors.Is(reported, err) {
			f.t.Errorf("%v is reported as %v", err, reported)
		}
		return ran, err
	}
}

// TestAnotherZone: a tick that was run is not run again by a machine in another zone, which is told. When no
// machine of the first zone is left, the job goes on in the other one.
func TestAnotherZone(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("east", 3600)
	for name, of := range map[string]func(*time.Location) schedule.Schedule{
		"daily": func(zone *time.Location) schedule.Schedule { return schedule.Daily("00:30", zone) },
		"cron":  func(*time.Location) schedule.Schedule { return cronLike{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			look := machines(newFleet(t), of)
			for i, step := range []struct {
				zone *time.Location
				at   time.Duration
				want error
			}{
				{east, time.Hour, nil}, // its tick is at -0:30
				{time.UTC, time.Hour, schedule.ErrZone},
				{time.FixedZone("also east", 3600), time.Hour, schedule.ErrDone},
				{east, 24 * time.Hour, nil},
				{time.UTC, 25 * time.Hour, schedule.ErrZone},
				{time.UTC, 48 * time.Hour, schedule.ErrZone}, // its tick at 24:30 was run in the east, where the next one is due
				{time.UTC, 49 * time.Hour, nil},
				{east, 49 * time.Hour, schedule.ErrDone},
				{east, 72 * time.Hour, schedule.ErrZone},
			} {
				ran, err := look(step.zone, step.at)
				if !errors.Is(err, step.want) || ran != (step.want == nil) {
					t.Errorf("step %d: ran %v, %v", i, ran, err)
				}
			}
		})
	}
}

// TestTheZoneMovesEast: a tick that comes sooner by the new zone is run late on that day.
func TestTheZoneMovesEast(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("east", 3600)
	look := machines(newFleet(t), func(zone *time.Location) schedule.Schedule { return schedule.Daily("03:00", zone) })
	for i, step := range []struct {
		zone *time.Location
		at   time.Duration
		want error
	}{
		{time.UTC, 3 * time.Hour, nil},
		{east, 26 * time.Hour, schedule.ErrZone}, // its tick, but in UTC the one of that day is to come
		{east, 27 * time.Hour, nil},
		{time.UTC, 27 * time.Hour, schedule.ErrZone},
		{east, 50 * time.Hour, nil},
	} {
		if ran, err := look(step.zone, step.at); !errors.Is(err, step.want) || ran != (step.want == nil) {
			t.Errorf("step %d: ran %v, %v", i, ran, err)
		}
	}
}

// TestAnotherZoneMeanwhile: while a machine waits for the lease, a tick is recorded whose labels it has not seen.
// It runs its own tick only if that one is of its schedule. The control is the tick of another schedule that it has
// seen begin, as after a change of the schedule.
func TestAnotherZoneMeanwhile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		recorded time.Duration // since midnight
		seen     bool
		want     error
	}{"the same": {-24*time.Hour + 30*time.Minute, false, nil}, "another": {-30 * time.Minute, false, schedule.ErrZone}, "control": {-30 * time.Minute, true, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			client := f.client()
			midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour)
			labels := map[string]string{}
			if tc.seen {
				labels["tick"] = midnight.Add(tc.recorded).Format(time.RFC3339Nano)
			}
			holder, err := client.Acquire(t.Context(), "report", pglock.WithLabels(labels))
			ok(t, err)
			var ran atomic.Bool
			ended := make(chan error, 1)
			job := f.job(schedule.WithClock(func() time.Time { return midnight.Add(time.Hour) }), schedule.WithLogger(nil))
			go func() {
				ended <- job.RunDue(t.Context(), schedule.Daily("00:30", time.UTC), func(context.Context, *pglock.Lease) error { ran.Store(true); return nil })
			}()
			pgtest.Eventually(t, "it waits", func() bool {
				info, err := client.Get(t.Context(), "report")
				return err == nil && len(info.Waiters) == 1
			})
			ok(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				mark := fencing.Token(midnight.Add(tc.recorded).UnixMicro())
				return fencing.Advance(t.Context(), tx, "last tick: report", mark, fencing.WithSchema(f.schema))
			}))
			ok(t, holder.Release(t.Context()))
			if err := <-ended; !errors.Is(err, tc.want) || ran.Load() != (tc.want == nil) {
				t.Errorf("ran %v, %v", ran.Load(), err)
			}
		})
	}
}

// TestZonesThatDifferLater: a process is told of another zone before its ticks differ. In the control the zones
// have the same ticks all year.
func TestZonesThatDifferLater(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for day, step := range []struct{ zone, told string }{
		{"Africa/Lagos", ""}, {"Europe/Berlin", "2026-03-29"}, {"Europe/Paris", ""}, {"Europe/Paris", ""}, {"Africa/Lagos", "2026-03-29"},
	} {
		logged := make(chan slog.Record, 10)
		at := time.Date(2026, 1, 10+day, 10, 0, 0, 0, time.UTC)
		job := f.job(schedule.WithClock(func() time.Time { return at }), schedule.WithLogger(slog.New(locktest.Records(logged))))
		ok(t, job.RunDue(t.Context(), schedule.Daily("03:00", location(t, step.zone)), nothing))
		close(logged)
		told := ""
		for line := range logged {
			told = locktest.Attr[time.Time](line, "until").Format(time.DateOnly)
		}
		if told != step.told {
			t.Errorf("%s is told of %q, want %q", step.zone, told, step.told)
		}
		if got := locktest.Scan[string](t, f.pool, "SELECT labels ->> 'timezone' FROM "+f.table("distributed_locks")); got != step.zone {
			t.Errorf("the row has %q, want %q", got, step.zone)
		}
	}
}
