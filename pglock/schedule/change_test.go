package schedule_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// wall is a schedule of times without a zone, as a parsed cron expression has them.
type wall []time.Duration // since midnight

func (w wall) Next(t time.Time) time.Time {
	for midnight := t.Truncate(24 * time.Hour); ; midnight = midnight.Add(24 * time.Hour) {
		for _, at := range w {
			if tick := midnight.Add(at); tick.After(t) {
				return tick
			}
		}
	}
}

// clockTicks returns the ticks of w from begin to end as someone sees them who watches the clock of loc: one
// whenever it shows, for the first time, a time of w or a later one. It also returns how many times of w
// there are.
func clockTicks(w wall, loc *time.Location, begin, end time.Time) (ticks []time.Time, times int) {
	const step = 15 * time.Minute // of which all changes and all times of the test are multiples
	var high time.Time
	for t := begin; t.Before(end); t = t.Add(step) {
		_, offset := t.In(loc).Zone()
		now := t.Add(time.Duration(offset) * time.Second)
		if high.IsZero() {
			high = now
		}
		if next := w.Next(high); !next.After(now) {
			ticks = append(ticks, t)
			for ; !next.After(now); next = w.Next(next) {
				times++
			}
		}
		if now.After(high) {
			high = now
		}
	}
	return ticks, times
}

// TestTenYearsOfClockChanges: in the zones with the strangest changes, each time of a schedule has one tick in
// ten years, when a clock first shows it or a later one. In the control the choices
// of a parser of cron expressions find others.
func TestTenYearsOfClockChanges(t *testing.T) {
	t.Parallel()
	begin := time.Date(2009, 1, 1, 0, 0, 0, 0, time.UTC)
	for zone, from := range map[string]int{
		"America/New_York": 2016, "America/Sao_Paulo": 2009, "Africa/Cairo": 2016, "Australia/Lord_Howe": 2016, "Pacific/Apia": 2009,
		"Europe/Berlin": 2016, "America/Santiago": 2016, "America/Nuuk": 2016, "Africa/Casablanca": 2016,
	} {
		loc := location(t, zone)
		begin := begin.AddDate(from-2009, 0, 0)
		end := begin.AddDate(10, 0, 0)
		failed := 0
		for name, w := range map[string]wall{
			"midnight": {0}, "half past": {30 * time.Minute}, "in the gap": {2*time.Hour + 15*time.Minute}, "three": {3 * time.Hour}, "late": {23*time.Hour + 30*time.Minute},
			"twice a day": {time.Hour, 2*time.Hour + 30*time.Minute}, "often": {0, 30 * time.Minute, time.Hour, 90 * time.Minute, 2 * time.Hour, 150 * time.Minute, 3 * time.Hour},
		} {
			want, times := clockTicks(w, loc, begin, end)
			if days := times / len(w); days < 3651 || days > 3654 {
				t.Errorf("%s, %s: %d days", zone, name, days)
			}
			if i := firstWrong(schedule.In(w, loc), want, begin); i >= 0 {
				t.Errorf("%s, %s: the tick after %d others is not %v", zone, name, i, want[i])
			}
			if firstWrong(schedule.In(w, loc, schedule.SkipGap, schedule.RepeatOverlap), want, begin) >= 0 {
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("%s: control: the other choices find all ticks", zone)
		}
	}
}

// firstWrong returns the index of the first tick that s does not find, also when it is asked some time after the
// tick before, or -1.
func firstWrong(s schedule.Schedule, want []time.Time, begin time.Time) int {
	for i, tick := range want {
		for asked := begin; asked.Before(tick) && asked.Sub(begin) < 4*time.Hour; asked = asked.Add(25 * time.Minute) {
			if !s.Next(asked).Equal(tick) {
				return i
			}
		}
		begin = tick
	}
	return -1
}

// TestChanges: a time that is skipped, and one that comes twice, with each choice.
func TestChanges(t *testing.T) {
	t.Parallel()
	berlin := location(t, "Europe/Berlin")
	gap, overlap := "2026-03-29", "2026-10-25"
	for _, test := range []struct {
		name, day string
		s         schedule.Schedule
		want      []string // in UTC
	}{
		{"skipped", gap, schedule.Daily("02:30", berlin, schedule.SkipGap), []string{"30 00:30", "31 00:30"}},
		{"the end of the gap", gap, schedule.Daily("03:00", berlin, schedule.SkipGap), []string{"29 01:00", "30 01:00"}},
		{"all of a gap", gap, schedule.In(schedule.Every(30*time.Minute), berlin), []string{"28 23:30", "29 00:00", "29 00:30", "29 01:00", "29 01:30"}},
		{"overlap, no gap", overlap, schedule.Daily("02:30", berlin, schedule.SkipGap), []string{"25 00:30", "26 01:30"}},
		{"repeated", overlap, schedule.Daily("02:30", berlin, schedule.SkipGap, schedule.RepeatOverlap), []string{"25 00:30", "25 01:30", "26 01:30"}},
		{"once each", overlap, schedule.In(schedule.Every(30*time.Minute), berlin), []string{"24 22:30", "24 23:00", "24 23:30", "25 00:00", "25 00:30", "25 02:00"}},
		{"each half hour", overlap, schedule.In(schedule.Every(30*time.Minute), berlin, schedule.RepeatOverlap),
			[]string{"24 22:30", "24 23:00", "24 23:30", "25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00"}},
	} {
		last, err := time.ParseInLocation(time.DateOnly, test.day, berlin)
		ok(t, err)
		for _, want := range test.want {
			last = test.s.Next(last)
			if got := last.UTC().Format("02 15:04"); got != want {
				t.Errorf("%s: got %s, want %s", test.name, got, want)
			}
		}
		if _, err := schedule.Due(test.s, last); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestBadZones: each mistake has an error that says what is right.
func TestBadZones(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]schedule.Schedule{
		"no schedule": schedule.In(nil, time.UTC), "no location": schedule.In(schedule.Every(time.Hour), nil),
		"a bad one": schedule.In(schedule.Every(0), time.UTC), "two zones": schedule.In(schedule.Daily("03:00", time.UTC), time.UTC),
		"a delay": schedule.In(delay(time.Hour), time.UTC), "never": schedule.In(list{}, time.UTC), "an unknown change": schedule.Daily("03:00", time.UTC, 4),
	} {
		if tick, err := schedule.Due(s, time.Now()); !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: got %v, %v", name, tick, err)
		}
	}
}
