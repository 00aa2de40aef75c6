package schedule

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

var (
	// ErrDone: the tick was run before, here or in another process, which is not a failure.
	ErrDone = errors.New("schedule: tick was already run")

	// ErrRunning: another process runs this tick or a later one. It is not a failure, and the error
	// also wraps pglock.ErrNotAcquired.
	ErrRunning = errors.New("schedule: another process runs the tick")

	// ErrClock: this machine's clock, or the last recorded tick, is more than a minute ahead of the
	// database's clock. The text says which, and the remedy.
	ErrClock = errors.New("schedule: clock is ahead of the database's")

	// ErrZone: the tick is not run, because the last one is of another time zone, so that the job
	// would run twice. Set one zone on all hosts. If no process of that zone begins its next tick,
	// this one continues in its own zone. A zone whose ticks are the same today, and differ from
	// some day on, is only logged at Warn. ErrZone is also the error of a time zone that is unknown:
	// see In.
	ErrZone = errors.New("schedule: another time zone")

	// ErrMissed: the tick was not run in time, and is now later than WithMaxLate allows.
	ErrMissed = errors.New("schedule: tick was missed")
)

const (
	defaultTTL = 30 * time.Second

	// takeoverTime is how long the default wait continues after a dead runner's lease has expired.
	takeoverTime = 5 * time.Second
)

// Option configures a Job.
type Option func(*config) error

type config struct {
	ttl     time.Duration
	wait    time.Duration
	waitSet bool
	maxLate time.Duration // 0: no limit
	retries int
	backoff time.Duration // before the first of them
	labels  map[string]string
	report  func(tick time.Time, err error)
	logger  func() *slog.Logger // called for each log line, since slog.Default can change
	now     func() time.Time
}

// WithTTL sets the TTL of a run's lease: how long after the death of its runner a tick stays
// blocked for other processes. A run may last longer than the TTL, which is 30 s by default,
// because the lease is renewed.
func WithTTL(d time.Duration) Option {
	return func(c *config) error {
		c.ttl = d
		return errs.Require("schedule", d > 0, "TTL %v is too short: must be more than 0", d)
	}
}

// WithWait sets how long a tick waits while another process runs it or an earlier tick. With 0 the
// tick is then skipped at once. With less than the TTL, ticks whose runner has died are skipped
// too. Default: until the next tick is due, and at least the TTL plus 5 s. Once, OncePer, Begin and
// BeginPer know no next tick: they wait for the TTL plus 5 s.
func WithWait(d time.Duration) Option {
	return func(c *config) error {
		c.wait, c.waitSet = d, true
		return errs.Require("schedule", d >= 0, "wait %v is negative: must be 0 or more", d)
	}
}

// WithMaxLate sets how late a tick may begin, by the database's clock. A tick that was missed
// because no process was up, and a tick that waited for the one before it, is then skipped with
// ErrMissed. Choose more than the TTL, so that a tick can still be taken over from a runner that
// died. Default: a tick may begin until the next one is due.
func WithMaxLate(d time.Duration) Option {
	return func(c *config) error {
		c.maxLate = d
		return errs.Require("schedule", d > 0, "maximum lateness %v is too short: must be more than 0", d)
	}
}

// WithRetry repeats a run that fails, up to that many times, 1 to 100, by whichever process is granted
// the job's lease next: one of those that wait for it, and otherwise the same one. The first
// repetition begins after the backoff, which then doubles, as long as it begins before the next tick
// is due. A backoff that is not shorter than the interval is refused with the first tick. The
// processes share the count, also if some of them die. After the last repetition the tick is
// recorded as run.
//
// Run logs each failure that is repeated at Warn, and reports only the last result. By default no
// run is repeated.
func WithRetry(retries int, backoff time.Duration) Option {
	return func(c *config) error {
		c.retries, c.backoff = retries, backoff
		return errs.Join(
			errs.Require("schedule", retries >= 1 && retries <= maxRetries, "number of retries %d is out of range: must be 1 to %d", retries, maxRetries),
			errs.Require("schedule", backoff > 0, "backoff %v is too short: must be more than 0", backoff))
	}
}

// WithLabels stores labels with the lease of a run, as pglock.WithLabels does. The label "tick"
// always has the tick, and with Run and RunDue "next" the one after it and "timezone" the zone of
// the schedule, if it has one.
func WithLabels(labels map[string]string) Option {
	return func(c *config) error { maps.Copy(c.labels, labels); return nil }
}

// WithReport makes Run and RunDue call report with the result of each tick that this process ran or
// failed to run: nil, the job's own error, or why the tick was not run or not recorded. They do not
// call it for ticks of other processes (ErrDone, ErrRunning), nor for runs that end because their
// context is done. Several goroutines may call report at once.
func WithReport(report func(tick time.Time, err error)) Option {
	return func(c *config) error {
		c.report = report
		return errs.Require("schedule", report != nil, "report function is nil: must be set")
	}
}

// WithLogger sets the logger of a Job, which is otherwise slog.Default(): see Failures above. Each
// run also logs at Warn that its tick could not be recorded at first, and with nil nothing is
// logged.
func WithLogger(l *slog.Logger) Option {
	l = quiet.Logger(l)
	return func(c *config) error { c.logger = func() *slog.Logger { return l }; return nil }
}

// WithClock replaces time.Now as the clock that decides when a tick is due, for tests.
func WithClock(now func() time.Time) Option {
	return func(c *config) error {
		c.now = now
		return errs.Require("schedule", now != nil, "clock is nil: must be set")
	}
}

// Done reports whether an error only says that the tick was run before, or that another process
// runs it: ErrDone or ErrRunning.
func Done(err error) bool { return errors.Is(err, ErrDone) || errors.Is(err, ErrRunning) }

// report logs the result of a tick and calls the function of WithReport. For a tick that another
// process has run or is running it only logs, at Debug.
func (j *Job) report(tick time.Time, err error) {
	switch {
	case Done(err):
		j.cfg.logger().Debug("pglock: another process runs the tick", "job", j.name, "tick", tick, "error", err)
		return
	case err != nil:
		j.cfg.logger().Warn("pglock: tick failed", "job", j.name, "tick", tick, "error", err)
	}
	j.cfg.report(tick, err)
}

func (j *Job) observe(ctx context.Context, e observe.ResultEvent) {
	e.Kind, e.Name = observe.KindTick, j.name
	j.client.Report(ctx, e)
}

// expect announces the tick that this process expects next, also of others, or none by the zero
// time.
func (j *Job) expect(ctx context.Context, next time.Time) {
	j.observe(ctx, observe.ResultEvent{Duration: next.Sub(j.wallClock())})
}

// observeBegin reports that a tick began, or could not begin, unless another process runs it.
func (j *Job) observeBegin(ctx context.Context, c claim, r *Run, err error) {
	if err == nil || Done(err) {
		j.expect(ctx, c.next)
	}
	e := observe.ResultEvent{Err: err} // with the outcome of err
	switch {
	case err == nil:
		e.Outcome, e.Token, e.Duration = observe.OutcomeBegan, r.lease.Token(), max(0, j.wallClock().Sub(r.tick))
	case Done(err), ctx.Err() != nil, errors.Is(err, pglock.ErrClosed), errors.Is(err, pglock.ErrInvalidOption):
		return
	case isFinal(err): // it is too late, or an earlier tick still runs
		e.Outcome = observe.OutcomeMissed
	}
	j.observe(ctx, e)
}

// observeSkip reports that Run skips ticks, from that one on, unless another process has run them.
func (j *Job) observeSkip(ctx context.Context, tick time.Time) {
	if known, err := j.read(ctx); err == nil && known.last.Before(tick) {
		j.observeBegin(ctx, claim{}, nil, j.refuse(ErrMissed, "tick %s is skipped, because a later one is due", format(tick)))
	}
}
