package schedule

import (
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

// Schedule gives the ticks of a job. Next returns the first tick after t, or the zero time if there
// is none. [Every] and [Daily] return schedules, and so do the parsers of cron expressions, such as
// cron.ParseStandard of robfig/cron, to which [In] gives a time zone.
//
// Ticks must not depend on the time at which a process starts, since all processes must agree on
// them. The functions of this package refuse a schedule that counts from the argument of Next, such
// as cron.Every: use Every.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Every returns the schedule whose ticks are the whole multiples of period, counted from the year 1
// in UTC as time.Truncate does. The period must be a millisecond or more. The functions that get a
// shorter one return pglock.ErrInvalidOption.
func Every(period time.Duration) Schedule {
	if period < time.Millisecond {
		return invalid{errs.InvalidOption("schedule", "period %v is too short: must be 1ms or more", period)}
	}
	return every{period, 0}
}

type every struct{ period, offset time.Duration }

func (e every) Next(t time.Time) time.Time {
	return t.Round(0).Add(-e.offset).Truncate(e.period).Add(e.period + e.offset)
}

// invalid is a schedule that was made with an invalid argument, and has no ticks.
type invalid struct{ err error }

func (invalid) Next(time.Time) time.Time { return time.Time{} }

// checkSchedule returns an error that wraps pglock.ErrInvalidOption if s has no ticks that all
// processes agree on. It looks at the first tick after now.
func checkSchedule(s Schedule, now time.Time) error {
	if s == nil {
		return errs.InvalidOption("schedule", "schedule is nil: must be set")
	}
	if bad, ok := s.(invalid); ok {
		return bad.err
	}
	tick, named := s.Next(now), s
	if z, ok := s.(zoned); ok {
		named = z.wall
	}
	switch {
	case tick.IsZero() && lastTick(s, now).IsZero():
		return errs.InvalidOption("schedule", "schedule %T never has a tick, as one for February 30", named)
	case tick.IsZero(): // the last tick has passed
		return nil
	case !tick.After(now):
		return errs.InvalidOption("schedule", "schedule %T returns a tick that is not after the time it was asked for", named)
	case !isTick(s, tick):
		return errs.InvalidOption("schedule", "schedule %T counts from the time it is asked at, so its ticks differ between processes: use Every", named)
	}
	return nil
}

func isTick(s Schedule, t time.Time) bool { return s.Next(t.Add(-1)).Equal(t) }

const (
	// maxLookback is how far back Due looks for a tick. February 29 may be 8 years ago.
	maxLookback = 9 * 365 * 24 * time.Hour

	// maxEarly is how long before its tick a timer may fire. A clock that is ahead by more than a
	// minute gets ErrClock in any case.
	maxEarly = 10 * time.Second
)

// early returns how long before the end of an interval a timer may fire and still count for the
// next one: a tenth of the interval, at most 10 s.
func early(interval time.Duration) time.Duration { return min(interval/10, maxEarly) }

// Due returns the tick of s that is due at the time now: the last one up to now, or the next one if
// now is less than a tenth of the interval and less than 10 s before it, because a timer fired
// early. Due returns the zero time if there was no tick in the last nine years.
//
// The error wraps pglock.ErrInvalidOption.
func Due(s Schedule, now time.Time) (time.Time, error) {
	now = now.Round(0)
	if err := checkSchedule(s, now); err != nil {
		return time.Time{}, err
	}
	last, next := lastTick(s, now), s.Next(now)
	if !last.IsZero() && !next.IsZero() && next.Sub(now) <= early(next.Sub(last)) {
		return next, nil
	}
	return last, nil
}

// lastTick returns the last tick up to now, or the zero time. It finds a time before that tick by
// doubling the distance, and then halves the interval that has the tick.
func lastTick(s Schedule, now time.Time) time.Time {
	due := func(t time.Time) bool { // whether there is a tick after t, up to now
		tick := s.Next(t)
		return !tick.IsZero() && !tick.After(now)
	}
	back := time.Second
	for ; !due(now.Add(-back)); back *= 2 {
		if back > maxLookback {
			return time.Time{}
		}
	}
	for low, high := now.Add(-back), now; ; {
		tick := s.Next(low)
		if !due(tick) {
			return tick
		}
		low = tick
		if middle := low.Add(high.Sub(low) / 2); due(middle) {
			low = middle
		} else {
			high = middle
		}
	}
}

// Daily returns the schedule with one tick for each day of the calendar in loc, at the time of day
// at: "15:04" or "15:04:05". It is In for these times, which says what happens on the days on which
// the clocks change.
//
// If at is not a time of day, the functions that get the schedule return pglock.ErrInvalidOption.
func Daily(at string, loc *time.Location, changes ...Change) Schedule {
	t, err := time.Parse("15:04:05", at)
	if err != nil {
		t, err = time.Parse("15:04", at)
	}
	if err != nil {
		return invalid{errs.InvalidOption("schedule", "time of day %.20q is invalid: must be like 15:04 or 15:04:05", at)}
	}
	const day = 24 * time.Hour
	return In(every{day, t.Sub(t.Truncate(day))}, loc, changes...)
}
