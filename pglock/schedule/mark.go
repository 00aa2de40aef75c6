package schedule

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// The last tick that was run is a fencing mark: a number that only grows. It is the tick in
// microseconds since 1970. Its resource is the job's name with this prefix.
const markPrefix = schema.LastTick

// maxAhead is how far a machine's clock may be ahead of the database's.
const maxAhead = time.Minute

// state is what the database knows of the job. Times are zero where it knows nothing.
type state struct {
	now       time.Time // by the database's clock
	last      time.Time // the last tick that was run
	failed    time.Time // the last tick that has failed
	attempts  int       // how often it has
	triggered time.Time // the last extra tick
}

// attemptsAt returns how often a tick has failed.
func (s state) attemptsAt(tick time.Time) int {
	if !tick.Truncate(time.Microsecond).Equal(s.failed) {
		return 0
	}
	return s.attempts
}

const stateSQL = "SELECT at, last_tick, failed_tick, attempts, triggered FROM pglock.job_state($1::text)"

func (j *Job) read(ctx context.Context) (s state, err error) {
	var last, failed, triggered int64
	err = j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var attempts int32
		err := tx.QueryRow(ctx, schema.Render(stateSQL, j.client.Schema()), j.name).Scan(&s.now, &last, &failed, &attempts, &triggered)
		s.attempts = int(attempts)
		return err
	})
	s.last, s.failed, s.triggered = markTime(last), markTime(failed), markTime(triggered)
	return s, err
}

// markTime returns the time of a mark, and the zero time for 0.
func markTime(mark int64) time.Time {
	if mark == 0 {
		return time.Time{}
	}
	return time.UnixMicro(mark)
}

// claim is what a run wants to run: a tick, or the job once per period.
type claim struct {
	tick   time.Time     // zero with a period
	next   time.Time     // the tick after it; zero if unknown
	of     Schedule      // whose tick it is, or of which it is an extra one; nil if unknown
	extra  bool          // an extra tick
	period time.Duration // zero with a tick
}

func claimOf(s Schedule, tick time.Time) claim { return claim{tick: tick, next: s.Next(tick), of: s} }

// isOf reports whether the tick is one of a schedule that is known.
func (c claim) isOf() bool { return c.of != nil && !c.extra }

// zone returns the time zone of the schedule, or the empty string if the schedule is unknown or has
// none.
func (c claim) zone() string {
	if _, utc := c.of.(every); utc || c.of == nil {
		return ""
	}
	return c.tick.Location().String()
}

// checkZone refuses the tick if the last one to begin was the same tick in another time zone, or an
// earlier one while the next one in that zone is not due. The labels of that grant, which the next
// grant replaces, have its time with the offset from UTC. checkZone returns that time.
//
// If no process of that zone is left, the job continues in this zone. So a day never has two runs,
// and it has one even if the zone changes, unless this process looks for its tick only once.
func (j *Job) checkZone(ctx context.Context, c claim) (last time.Time, err error) {
	if !c.isOf() {
		return last, nil
	}
	info, err := j.client.Get(ctx, j.name)
	if errors.Is(err, pglock.ErrNotFound) {
		return last, nil
	}
	last, _ = time.Parse(time.RFC3339Nano, info.Labels[tickLabel]) // zero if the holder was another program
	next, unknown := time.Parse(time.RFC3339Nano, info.Labels[nextLabel])
	zone, other := c.tick.Location(), info.Labels[zoneLabel]
	if err != nil || unknown != nil {
		return last, err
	}
	if isTick(c.of, last.In(zone)) {
		if day := firstDifference(c.zone(), other, c.tick); !day.IsZero() {
			j.cfg.logger().Warn("pglock: another process runs the job by another time zone, whose ticks are the same today: must be one zone on all hosts",
				"job", j.name, "zone", c.zone(), "other", other, "until", day)
		}
		return last, nil
	}
	year, month, day := last.Date()
	hour, minute, second := last.Clock()
	here := time.Date(year, month, day, hour, minute, second, last.Nanosecond(), zone)
	if !isTick(c.of, here) || c.tick.After(here) && !j.wallClock().Before(next) {
		return last, nil // of another schedule, or no process has begun the next one
	}
	return last, j.refuse(ErrZone, "tick %s (%s) is not run, because the last one, %s (%s), is of another time zone: must be one zone on all hosts",
		format(c.tick), zone, format(last), cmp.Or(other, "unknown"))
}

// check returns the tick to run, or why it must not be run: ErrDone, ErrClock, ErrMissed. With a
// period the tick is the time by the database's clock, or that of the run that has failed since.
//
// Begin refuses ticks that are ahead by more than maxAhead, so a mark that is further ahead was
// recorded by a wrong clock, or the clock is wrong now. The ticks up to the mark may have been run
// or not, so none of them runs, but they don't pass for done either: that would stop the job
// silently.
func (j *Job) check(ctx context.Context, c claim) (tick time.Time, s state, err error) {
	if c.period == 0 && c.tick.UnixMicro() <= 1 {
		return tick, s, errs.InvalidOption("schedule", "tick %s is too early: must be after 1970", format(c.tick))
	}
	if s, err = j.read(ctx); err != nil {
		return tick, s, err
	}
	if ahead := s.last.Sub(s.now); ahead > maxAhead {
		return tick, s, j.refuse(ErrClock, "the last recorded tick, %s, is %v ahead of the database's clock, which is or was wrong: correct the clock, or delete the row %q of table %s.fencing_high_water",
			format(s.last), ahead.Round(time.Second), markPrefix+j.name, j.client.Schema())
	}
	if c.period > 0 {
		since := s.now.Sub(s.last)
		switch {
		case since < c.period-early(c.period):
			err = j.refuse(ErrDone, "the last run began at %s, %v ago: the next one may begin %v after it",
				format(s.last), since.Round(time.Second), c.period)
		case s.failed.After(s.last) && !s.failed.After(s.now) && s.now.Sub(s.failed) < c.period:
			return s.failed, s, nil
		}
		return s.now, s, err
	}
	ahead := c.tick.Sub(s.now)
	switch {
	case s.last.UnixMicro() >= c.tick.UnixMicro():
		err = j.refuse(ErrDone, "tick %s was already run", format(c.tick))
	case ahead > maxAhead:
		err = j.refuse(ErrClock, "tick %s is %v ahead of the database's clock: must be %v at most",
			format(c.tick), ahead.Round(time.Millisecond), maxAhead)
	case j.cfg.maxLate > 0 && -ahead > j.cfg.maxLate && s.attemptsAt(c.tick) == 0:
		err = j.refuse(ErrMissed, "tick %s is %v late: must be %v at most",
			format(c.tick), -ahead.Round(time.Millisecond), j.cfg.maxLate)
	}
	return c.tick, s, err
}

func (j *Job) advance(ctx context.Context, tx pgx.Tx, token fencing.Token) error {
	return fencing.Advance(ctx, tx, markPrefix+j.name, token, fencing.WithSchema(j.client.Schema()))
}

func (j *Job) inTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return backend.Inside.InTx(ctx, j.client, markPrefix+j.name, fn)
}
