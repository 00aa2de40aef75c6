package schedule_test

import (
	"errors"
	"strings"
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

// TestDailyTicks: each day of the calendar has one tick, whether it has 23, 24 or 25 hours.
func TestDailyTicks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, zone, at, from string
		want                 string // in UTC
	}{
		{"ordinary days", "Europe/Berlin", "03:00", "2026-01-01", "01T02:00 02T02:00 03T02:00"},
		{"a day of 23 hours", "Europe/Berlin", "03:00", "2026-03-28", "28T02:00 29T01:00 30T01:00"},
		{"a day of 25 hours", "Europe/Berlin", "03:00", "2026-10-24", "24T01:00 25T02:00 26T02:00"},
		{"skipped: the end of the gap", "Europe/Berlin", "02:30", "2026-03-28", "28T01:30 29T01:00 30T00:30"},
		{"the start of the gap", "Europe/Berlin", "02:00", "2026-03-28", "28T01:00 29T01:00 30T00:00"},
		{"twice: the first one", "Europe/Berlin", "02:30", "2026-10-24", "24T00:30 25T00:30 26T01:30"},
		{"before the second three", "Europe/Berlin", "02:00", "2026-10-24", "24T00:00 25T00:00 26T01:00"},
		{"skipped midnight", "America/Santiago", "00:30", "2026-09-05", "05T04:30 06T04:00 07T03:30"},
		{"a gap that ends at midnight", "America/Nuuk", "23:30", "2024-03-29", "30T01:30 31T01:00 01T00:30"},
		{"half an hour of change", "Australia/Lord_Howe", "02:15", "2026-10-03", "02T15:45 03T15:30 04T15:15"},
		{"a day that is skipped", "Pacific/Apia", "12:00", "2011-12-29", "29T22:00 30T10:00 30T22:00"},
		{"no change", "UTC", "23:59:59", "2026-12-31", "31T23:59:59 01T23:59:59 02T23:59:59"},
	} {
		loc := location(t, test.zone)
		from, err := time.ParseInLocation(time.DateOnly, test.from, loc)
		ok(t, err)
		ticks := schedule.Daily(test.at, loc)
		var got []string
		for tick := from.Add(-time.Second); len(got) < 3; {
			next := ticks.Next(tick)
			if !next.After(tick) {
				t.Fatalf("%s: %v follows %v", test.name, next, tick)
			}
			tick = next
			got = append(got, strings.TrimSuffix(tick.UTC().Format("02T15:04:05"), ":00"))
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: got %s, want %s", test.name, text, test.want)
		}
	}
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
