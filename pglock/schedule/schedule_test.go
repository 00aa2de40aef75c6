package schedule_test

import (
	"errors"
	"testing"
	"time"
	_ "time/tzdata" // for machines without time zones

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// delay is a schedule that counts from the time it is asked at, as cron.Every does.
type delay time.Duration

func (d delay) Next(t time.Time) time.Time { return t.Add(time.Duration(d)) }

// list is a schedule with these ticks.
type list []time.Time

func (l list) Next(t time.Time) time.Time {
	for _, tick := range l {
		if tick.After(t) {
			return tick
		}
	}
	return time.Time{}
}

func location(t *testing.T, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	ok(t, err)
	return loc
}

// TestDue: the last tick, or the next one if the timer fired up to a tenth of the interval and up to
// ten seconds early.
func TestDue(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	weekly := list{noon.AddDate(-1, 0, 0), noon.AddDate(0, 0, -7), noon, noon.AddDate(0, 0, 7)}
	for _, test := range []struct {
		name  string
		ticks schedule.Schedule
		now   time.Time
		want  time.Time
	}{
		{"at the tick", schedule.Every(time.Hour), noon, noon},
		{"after it", schedule.Every(time.Hour), noon.Add(59 * time.Minute), noon},
		{"10 s early", schedule.Every(time.Hour), noon.Add(-10 * time.Second), noon},
		{"11 s early", schedule.Every(time.Hour), noon.Add(-11 * time.Second), noon.Add(-time.Hour)},
		{"a tenth early", schedule.Every(time.Second), noon.Add(-100 * time.Millisecond), noon},
		{"more than a tenth early", schedule.Every(time.Second), noon.Add(-101 * time.Millisecond), noon.Add(-time.Second)},
		{"daily", schedule.Daily("12:00", time.UTC), noon.Add(23 * time.Hour), noon},
		{"daily, early", schedule.Daily("12:00", time.UTC), noon.Add(24*time.Hour - 9*time.Second), noon.AddDate(0, 0, 1)},
		{"rare ticks", weekly, noon.Add(-time.Hour), noon.AddDate(0, 0, -7)},
		{"a year ago", weekly, noon.AddDate(0, -1, 0), noon.AddDate(-1, 0, 0)},
		{"none before", weekly, noon.AddDate(-2, 0, 0), time.Time{}},
		{"none after", weekly, noon.AddDate(1, 0, 0), noon.AddDate(0, 0, 7)},
	} {
		if got, err := schedule.Due(test.ticks, test.now); err != nil || !got.Equal(test.want) {
			t.Errorf("%s: got %v, %v, want %v", test.name, got, err, test.want)
		}
	}
	for name, ticks := range map[string]schedule.Schedule{
		"nil": nil, "a short period": schedule.Every(999 * time.Microsecond), "a bad time": schedule.Daily("24:00", time.UTC),
		"no location": schedule.Daily("12:00", nil), "a fixed delay": delay(time.Hour), "going back": delay(-time.Hour), "never": list{},
	} {
		if tick, err := schedule.Due(ticks, noon.Add(123*time.Millisecond)); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: got %v, %v", name, tick, err)
		}
	}
}

// at is a schedule with that tick only, or with none.
type at struct{ tick time.Time }

func (a at) Next(t time.Time) time.Time {
	if a.tick.After(t) {
		return a.tick
	}
	return time.Time{}
}

// TestADateThatNeverComes, such as February 30, is a mistake, which must not look like a job that is done. In
// the control the only tick is past.
func TestADateThatNeverComes(t *testing.T) {
	t.Parallel()
	job := newFleet(t).job(schedule.WithLogger(nil))
	for s, want := range map[at]error{{}: pglock.ErrInvalidOption, {time.Now().Add(-time.Hour)}: nil} {
		if err := job.RunDue(t.Context(), s, nothing); !errors.Is(err, want) {
			t.Errorf("RunDue: %v, want %v", err, want)
		}
		if _, err := job.BeginDue(t.Context(), s); (want != nil) == schedule.Done(err) || want != nil && !errors.Is(err, want) {
			t.Errorf("BeginDue: %v", err)
		}
		if err := job.Run(t.Context(), s, nothing); !errors.Is(err, want) {
			t.Errorf("Run: %v, want %v", err, want)
		}
	}
}
