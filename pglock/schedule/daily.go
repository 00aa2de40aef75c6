package schedule

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

// Daily returns the schedule with one tick for each day of the calendar in loc, at the time of day
// at: "15:04" or "15:04:05". All processes must use the same location: see ErrZone. time.Local is a
// good one only if all hosts have the same time zone.
//
// The tick of a day is the first moment at which the clock shows that time or a later one. On a day
// on which the clock skips the time, the tick is the end of the gap. On a day on which the time
// comes twice, the tick is the first one.
//
// If at is not a time of day or loc is nil, the functions that get the schedule return
// pglock.ErrInvalidOption. They do so with ErrZone if loc is time.Local and the environment variable TZ
// names a zone that can't be loaded, for which package time silently takes UTC. A program in an image
// without zone files imports time/tzdata.
func Daily(at string, loc *time.Location) Schedule {
	if loc == nil {
		return invalid{invalidOption("location is nil: must be set, for example to time.Local")}
	}
	t, err := time.Parse("15:04:05", at)
	if err != nil {
		t, err = time.Parse("15:04", at)
	}
	if err != nil {
		return invalid{invalidOption("time of day %q is invalid: must be like 15:04 or 15:04:05", at)}
	}
	if tz := strings.TrimPrefix(os.Getenv("TZ"), ":"); loc == time.Local && !loadable(tz) && loc.String() == time.UTC.String() {
		return invalid{errs.Mark(invalidOption("time zone %q of $TZ can't be loaded: must be a name like Europe/Berlin, with zone files or time/tzdata", tz), ErrZone)}
	}
	hour, minute, second := t.Clock()
	return daily{hour, minute, second, loc}
}

// loadable reports whether package time can load a time zone that TZ names.
func loadable(tz string) bool {
	_, err := time.LoadLocation(tz) // "" is UTC
	if filepath.IsAbs(tz) {
		_, err = os.Stat(tz)
	}
	return err == nil
}

type daily struct {
	hour, minute, second int
	loc                  *time.Location
}

// Next begins with the day of t. The tick of an earlier day is over, since it is the first moment at
// which the clock shows that time or a later one.
func (d daily) Next(t time.Time) time.Time {
	year, month, day := t.In(d.loc).Date()
	for {
		if tick := d.on(year, month, day); tick.After(t) {
			return tick
		}
		day++
	}
}

// on returns the tick of a day. It walks through the intervals of constant offset from UTC, from a
// time that is before the tick in every time zone.
func (d daily) on(year int, month time.Month, day int) time.Time {
	wall := time.Date(year, month, day, d.hour, d.minute, d.second, 0, time.UTC)
	for t := wall.Add(-30 * time.Hour).In(d.loc); ; {
		start, end := t.ZoneBounds()
		_, offset := t.Zone()
		tick := wall.Add(-time.Duration(offset) * time.Second).In(d.loc)
		if tick.Before(start) { // the clock was set forward past the time
			tick = start
		}
		if end.IsZero() || tick.Before(end) {
			return tick
		}
		t = end
	}
}
