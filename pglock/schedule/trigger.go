package schedule

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// triggerStep is the time between looks of Run for an extra tick.
const triggerStep = 2 * clockStep

const (
	triggerSQL  = "SELECT outcome, coalesce(tick, 0) FROM pglock.trigger_job($1::text, $2::text)"
	registerSQL = "INSERT INTO pglock.scheduled_jobs (job) VALUES ($1::text) ON CONFLICT DO NOTHING"
)

// Trigger makes the job run once more, soon, by whichever process serves it: Run looks for such an
// extra tick every 10 s, and RunDue and BeginDue when their own tick was run. It returns the tick,
// which is the time of the call by the database's clock.
//
// The extra tick is recorded like any other. If no process runs it before the next tick of the
// schedule, the run of that one counts for it. While an extra tick is pending, Trigger returns that
// one and adds none.
//
// The table operator_actions has the latest calls, with the role and the reason, which may be empty and
// has 512 bytes of UTF-8 without NUL at most: name the person who acts in it.
//
// If the job is being run, Trigger changes nothing, and the error wraps ErrRunning and
// pglock.ErrNotAcquired. If no process has run the job or its loop, the error wraps
// pglock.ErrNotFound. If the last tick is ahead of the database's clock, so that the job runs no tick, it wraps
// ErrClock. Other errors are the client's.
func (j *Job) Trigger(ctx context.Context, reason string) (tick time.Time, err error) {
	if len(reason) > maxReason || !utf8.ValidString(reason) || strings.Contains(reason, "\x00") {
		return tick, errs.InvalidOption("schedule", "reason %.64q: must be at most %d bytes of UTF-8 without NUL", reason, maxReason)
	}
	var outcome string
	var mark int64
	err = j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, schema.Render(triggerSQL, j.client.Schema()), j.name, reason).Scan(&outcome, &mark)
	})
	switch {
	case err != nil:
		return tick, err
	case outcome == "running":
		return tick, errs.Mark(j.refuse(ErrRunning, "nothing was triggered, because the job is being run: must have ended"), pglock.ErrNotAcquired)
	case outcome == "ahead":
		return tick, j.refuse(ErrClock, "nothing was triggered, because the last recorded tick, %s, is ahead of the database's clock: must be past", format(markTime(mark)))
	case outcome == "unknown":
		return tick, j.refuse(pglock.ErrNotFound, "nothing was triggered, because no process has served the job: must be the name of a job in this schema")
	}
	return markTime(mark), nil
}

// register makes the job known to Trigger before its first tick.
func (j *Job) register(ctx context.Context) error {
	return j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, schema.Render(registerSQL, j.client.Schema()), j.name)
		return err
	})
}

// extra returns the claim of the extra tick that is pending, if it lies between two ticks of the
// schedule, of which the first was dealt with: a tick that is recorded marks those before it as run.
// No next tick is the zero time.
func (j *Job) extra(known state, of Schedule, after, next time.Time) (claim, bool) {
	tick := known.triggered
	switch {
	case of == nil, !tick.After(known.last), !tick.After(after), !next.IsZero() && !tick.Before(next):
		return claim{}, false
	case j.cfg.maxLate > 0 && known.now.Sub(tick) > j.cfg.maxLate:
		return claim{}, false
	}
	next = of.Next(tick)
	return claim{tick: tick.In(next.Location()), next: next, of: of, extra: true}, true
}

// await sleeps until the tick is due, and runs extra ticks meanwhile. The error is that of Run.
func (j *Job) await(ctx context.Context, s Schedule, tick time.Time, fn Func) error {
	for {
		now := j.wallClock()
		look := now.Add(triggerStep)
		if !look.Before(tick) {
			look = tick
		}
		if !j.sleepUntil(ctx, look) {
			return context.Cause(ctx)
		}
		if look.Equal(tick) {
			return nil
		}
		bounded, stop := context.WithTimeout(ctx, inspectTimeout)
		known, err := j.read(bounded)
		stop()
		if err != nil { // the tick reports why
			continue
		}
		if c, ok := j.extra(known, s, time.Time{}, tick); ok {
			if err := j.runTick(ctx, s, c, fn); err != nil {
				return err
			}
			j.expect(ctx, tick)
		}
	}
}
