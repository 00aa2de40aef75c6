package schedule

import (
	"os"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

// Change says what a schedule of In does when the clocks change.
type Change int

const (
	// SkipGap makes a time that the clock skips have no tick.
	SkipGap Change = 1 << iota

	// RepeatOverlap makes a time that comes twice have two ticks.
	RepeatOverlap
)

// In returns the schedule whose ticks are at the times of s by the clocks in loc. It reads the ticks
// of s as times of day without a zone, and asks s in UTC:
//
//	spec, err := cron.ParseStandard("0 3 * * 1-5") // github.com/robfig/cron/v3
//	...
//	err = job.Run(ctx, schedule.In(spec, berlin), makeReport)
//
// The tick is the first moment at which the clock shows the time of s or a later one. So the tick of
// a time that the clock skips is the end of the gap, once for all times in the gap, and the tick of
// a time that comes twice is the first one. SkipGap and RepeatOverlap change that: use RepeatOverlap
// for ticks that come several times an hour, which otherwise pause while the clock repeats itself.
//
// All processes must use the same location: see ErrZone. time.Local is a good one only if all hosts
// have the same time zone.
//
// If s or loc is nil, or if s is a schedule of In or Daily, the functions that get the schedule
// return pglock.ErrInvalidOption. They do so with ErrZone if loc is time.Local and the environment
// variable TZ names a zone that can't be loaded, for which package time silently takes UTC. A
// program in an image without zone files imports time/tzdata. A parsed expression that names a zone
// by itself, as by CRON_TZ, must not be used with In.
func In(s Schedule, loc *time.Location, changes ...Change) Schedule {
	z := zoned{s, loc, 0}
	for _, c := range changes {
		z.changes |= c
	}
	// Package time calls a zone of TZ by its name or its file, and by UTC if it can't load that.
	tz := strings.TrimPrefix(os.Getenv("TZ"), ":")
	_, unknown := time.LoadLocation(tz)
	bad, isInvalid := s.(invalid)
	_, twice := s.(zoned)
	switch {
	case isInvalid:
		return bad
	case s == nil:
		return invalid{errs.InvalidOption("schedule", "schedule is nil: must be set")}
	case loc == nil:
		return invalid{errs.InvalidOption("schedule", "location is nil: must be set, for example to time.Local")}
	case twice:
		return invalid{errs.InvalidOption("schedule", "schedule has the time zone %s already: must have none", s.(zoned).loc)}
	case z.changes&^(SkipGap|RepeatOverlap) != 0:
		return invalid{errs.InvalidOption("schedule", "change %d is unknown: must be SkipGap or RepeatOverlap", z.changes)}
	case unknown != nil && loc == time.Local && loc.String() == time.UTC.String():
		return invalid{errs.Mark(errs.InvalidOption("schedule", "time zone %q of $TZ can't be loaded: must be a name like Europe/Berlin, with zone files or time/tzdata", tz), ErrZone)}
	}
	return z
}

type zoned struct {
	wall    Schedule // its times are what clocks show, as if that was UTC
	loc     *time.Location
	changes Change
}

// Next walks through the intervals of constant offset from UTC, beginning with that of t.
func (z zoned) Next(t time.Time) time.Time {
	t = t.In(z.loc)
	start, end := t.ZoneBounds()
	passed := shown(t) // the times up to this one have had their tick
	if z.changes&RepeatOverlap == 0 {
		// The clock may have shown later times before it was set back.
		for from := start; !from.IsZero() && t.Sub(from) < maxChange; from, _ = from.Add(-1).ZoneBounds() {
			passed = later(passed, shown(from.Add(-1)))
		}
	}
	for {
		wall := z.wall.Next(passed)
		if wall.IsZero() {
			return wall
		}
		_, offset := t.Zone()
		tick := wall.Add(-time.Duration(offset) * time.Second).In(z.loc)
		if tick.Before(start) { // the clock was set forward past the time
			tick = start
		}
		if end.IsZero() || tick.Before(end) {
			return tick
		}
		before := shown(end.Add(-1))
		t = end
		start, end = t.ZoneBounds()
		if back := shown(t).Before(before); back && z.changes&RepeatOverlap != 0 {
			passed = shown(t).Add(-1)
		} else if !back && z.changes&SkipGap != 0 {
			passed = later(passed, shown(t).Add(-1))
		}
	}
}

// maxChange is more than a clock is ever set back: 24 h, where the date line has moved.
const maxChange = 30 * time.Hour

// shown returns what the clock at the location of t shows, as a time in UTC.
func shown(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// firstDifference returns the first noon in UTC of the year after from at which the clocks of two
// zones differ, or the zero time. Only names that mean the same on all hosts are compared.
func firstDifference(zone, other string, from time.Time) time.Time {
	a, err := time.LoadLocation(zone)
	b, otherErr := time.LoadLocation(other)
	if err != nil || otherErr != nil || a == time.Local || b == time.Local || zone == "" || other == "" {
		return time.Time{}
	}
	for day := range 366 {
		noon := from.UTC().Truncate(24*time.Hour).AddDate(0, 0, day).Add(12 * time.Hour)
		if !shown(noon.In(a)).Equal(shown(noon.In(b))) {
			return noon
		}
	}
	return time.Time{}
}
