package schedule

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// Job runs each tick once among all processes that have a Job of the same name. It is safe for
// concurrent use.
type Job struct {
	client *pglock.Client
	name   string
	cfg    config
	sem    chan struct{} // holds one element while a tick runs here; senders are served in order
}

// New returns the job of that name without contacting the database. All processes that run the job
// use the same name and the same schema. The job's lock, which is a lease, has this name too: 1 to
// 500 bytes of UTF-8 without NUL.
//
// Each run uses a connection of the client's pool for a short transaction before and after it.
//
// The error wraps pglock.ErrInvalidOption.
func New(client *pglock.Client, name string, opts ...Option) (*Job, error) {
	cfg := config{ttl: defaultTTL, labels: map[string]string{}, report: func(time.Time, error) {}, logger: slog.Default, now: time.Now}
	if err := errs.Apply("schedule", &cfg, opts); err != nil {
		return nil, err
	}
	if !cfg.waitSet {
		cfg.wait = cfg.ttl + takeoverTime
	}
	switch {
	case client == nil:
		return nil, errs.InvalidOption("schedule", "client is nil: must be from pglock.Open")
	case name == "" || len(name) > maxName:
		return nil, errs.InvalidOption("schedule", "job name has %d bytes: must have 1 to %d", len(name), maxName)
	}
	return &Job{client, name, cfg, make(chan struct{}, 1)}, nil
}

// maxName leaves room for markPrefix.
const maxName = errs.MaxName - len(markPrefix)

// Begin starts a run of the tick if the tick was not run. It waits while another process runs this
// tick or an earlier one, for the time of WithWait.
//
// On success only this Run may run the tick, until End, until Abandon, or until its lease is lost.
// On failure nothing is held, and the error wraps one of these, or is the client's:
//   - ErrDone: the tick was run.
//   - pglock.ErrNotAcquired: this tick or an earlier one still ran when the time of WithWait was
//     over. With ErrRunning it was this tick.
//   - ErrClock: this machine's clock is ahead, or the clock of an earlier run was.
//   - ErrMissed: the tick is later than WithMaxLate allows.
//   - pglock.ErrHeldByCaller: ctx is that of a run of the job. Runs do not join one another.
//
// ctx bounds Begin only.
func (j *Job) Begin(ctx context.Context, tick time.Time) (*Run, error) {
	return j.begin(ctx, &claim{tick: tick}, j.cfg.wait)
}

// BeginDue is Begin for the tick of s that is due: see Due. If that was run, it is Begin for the
// extra tick of Trigger that is pending. If no tick was ever due, the error wraps ErrDone. If the
// last tick is that of a process in another time zone, it wraps ErrZone.
func (j *Job) BeginDue(ctx context.Context, s Schedule) (*Run, error) {
	c, err := j.due(s)
	if err != nil {
		return nil, err
	}
	return j.begin(ctx, &c, j.cfg.wait)
}

func (j *Job) due(s Schedule) (claim, error) {
	tick, err := Due(s, j.wallClock())
	switch {
	case err != nil:
		return claim{}, err
	case tick.IsZero():
		return claim{}, j.refuse(ErrDone, "no tick is due")
	}
	return claimOf(s, tick), j.checkRetry(s, tick)
}

// BeginPer starts a run unless one began less than period ago by the database's clock. A run may
// begin a tenth of the period early, but not more than 10 s, so that a timer with that period needs
// no tolerance. The tick of the Run is the time at which it begins, by the database's clock.
// BeginPer waits as Begin does, and returns the same errors. The period must be a millisecond or
// more.
func (j *Job) BeginPer(ctx context.Context, period time.Duration) (*Run, error) {
	return j.begin(ctx, &claim{period: period}, j.cfg.wait)
}

// begin waits for the time of wait until no other run of the job is in progress here or elsewhere. If
// the tick of the claim was run, and an extra one is pending, the claim becomes that one.
func (j *Job) begin(ctx context.Context, c *claim, wait time.Duration) (r *Run, err error) {
	if c.tick.IsZero() && c.period < time.Millisecond {
		return nil, errs.InvalidOption("schedule", "period %v is too short: must be 1ms or more", c.period)
	}
	defer func() { j.observeBegin(ctx, *c, r, err) }()
	until := time.Now().Add(wait)
	if err := j.enter(ctx, wait); err != nil {
		return nil, err
	}
	r, err = j.acquire(ctx, c, max(0, time.Until(until)))
	if err != nil {
		<-j.sem
		return nil, err
	}
	return r, nil
}

// enter waits until this process runs no other tick of the job. A later tick must not overtake an
// earlier one, because recording the later one marks the earlier one as run.
func (j *Job) enter(ctx context.Context, wait time.Duration) error {
	select { // a free semaphore wins over a context that is done: WithWait(0) still runs the tick
	case j.sem <- struct{}{}:
		return nil
	default:
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select { // if both are ready, either is right
	case j.sem <- struct{}{}:
		return nil
	case <-bounded.Done():
		return j.refuse(pglock.ErrNotAcquired, "an earlier tick still runs in this process: %w", context.Cause(bounded))
	}
}

func (j *Job) acquire(ctx context.Context, planned *claim, wait time.Duration) (*Run, error) {
	tick, before, err := j.check(ctx, *planned)
	if extra, ok := j.extra(before, planned.of, planned.tick, planned.next); ok && (errors.Is(err, ErrDone) || errors.Is(err, ErrMissed)) {
		*planned = extra
		tick, before, err = j.check(ctx, *planned)
	}
	if err != nil {
		return nil, err
	}
	c := *planned
	began, err := j.checkZone(ctx, c)
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(j.cfg.labels)
	labels[tickLabel] = tick.Format(time.RFC3339Nano) // with its offset: see checkZone
	if !c.next.IsZero() {
		labels[nextLabel] = c.next.UTC().Format(time.RFC3339Nano)
	}
	if zone := c.zone(); zone != "" {
		labels[zoneLabel] = zone
	}
	lease, err := j.client.Acquire(ctx, j.name, pglock.WithWait(wait), pglock.WithTTL(j.cfg.ttl), pglock.WithLabels(labels))
	if err != nil {
		return nil, j.explainBusy(ctx, c, err)
	}
	// Another process may have run the tick between the first check and the grant, or one of its
	// zone, whose labels are gone.
	tick, now, err := j.check(ctx, c)
	last := now.last
	if known := !c.isOf() || last.Equal(before.last) || last.Equal(now.triggered) || last.Equal(began.Truncate(time.Microsecond)) || isTick(c.of, last.In(tick.Location())); err == nil && !known {
		err = j.refuse(ErrZone, "tick %s is not run, because %s was run meanwhile, by another schedule or time zone: must be one on all hosts", format(tick), format(last))
	}
	if c.period > 0 {
		c.next = tick.Add(c.period)
	}
	r := &Run{j, lease, tick, c.next, now.attemptsAt(tick), time.Now()}
	if err == nil {
		err = r.pause(ctx)
	}
	if err != nil {
		return nil, errs.Join(err, release(ctx, lease))
	}
	return r, nil
}

// The labels of the job's lease with the tick that its holder runs, with the tick after it, and with
// the time zone of the schedule, which the view schedules reads.
const (
	tickLabel = "tick"
	nextLabel = "next"
	zoneLabel = "timezone"
)

// explainBusy completes err, the error of a lease that another process holds. It adds ErrRunning if
// the holder runs the same tick or a later one, and names the tick if the holder runs an earlier
// one. It returns ErrDone instead if the tick was run meanwhile.
func (j *Job) explainBusy(ctx context.Context, c claim, err error) error {
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	if _, _, done := j.check(ctx, c); errors.Is(done, ErrDone) {
		return done
	}
	info, getErr := j.client.Get(ctx, j.name)
	if getErr != nil || !info.Held() {
		return err
	}
	running, parseErr := time.Parse(time.RFC3339Nano, info.Labels[tickLabel])
	switch {
	case parseErr != nil: // the holder is another program
		return err
	case running.Before(c.tick):
		return errs.Errorf("schedule: job %q: tick %s is skipped: tick %s still runs: %w",
			j.name, format(c.tick), format(running), err)
	}
	return j.refuse(ErrRunning, "another process runs tick %s: %w", format(running), err)
}

func (j *Job) refuse(kind error, format string, args ...any) error {
	return errs.Mark(errs.Errorf("schedule: job %q: "+format, append([]any{j.name}, args...)...), kind)
}

// inspectTimeout bounds the queries that find out which tick the holder runs.
const inspectTimeout = 5 * time.Second

func format(tick time.Time) string { return tick.Format(time.RFC3339Nano) }
