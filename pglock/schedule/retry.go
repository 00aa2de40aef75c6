package schedule

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

const (
	maxRetries = 100

	// longPause is a pause before a repetition that is not doubled any more.
	longPause = 24 * time.Hour

	// maxReason is the longest text of a failure in bytes, which the table bounds too.
	maxReason = 512
)

// pauseAfter returns the pause after so many failures of a tick.
func (j *Job) pauseAfter(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	pause := j.cfg.backoff
	for ; failures > 1 && pause < longPause; failures-- {
		pause *= 2
	}
	return pause
}

// repeats reports whether the run is repeated if it fails now.
func (r *Run) repeats() bool {
	failures := r.attempts + 1
	begins := r.job.wallClock().Add(r.job.pauseAfter(failures))
	return failures <= r.job.cfg.retries && (r.until.IsZero() || begins.Before(r.until))
}

// pause waits under the lease before a repetition, whichever process had the failure: it may have
// been another one that has died.
func (r *Run) pause(ctx context.Context) error {
	pause := r.job.pauseAfter(r.attempts)
	if pause == 0 {
		return nil
	}
	held, stop := r.lease.WithContext(ctx)
	defer stop()
	if backoff.Sleep(held, pause) != nil {
		return errs.Errorf("schedule: job %q: tick %s is not repeated: %w", r.job.name, format(r.tick), context.Cause(held))
	}
	return nil
}

// failSQL has the number of the attempt, so that a repeated call counts once.
const failSQL = `INSERT INTO pglock.scheduled_jobs AS j (job, failed_tick, attempts, error) VALUES ($1::text, $2::bigint, $3::integer, $4::text)
ON CONFLICT (job) DO UPDATE SET failed_tick = excluded.failed_tick, attempts = excluded.attempts, error = excluded.error`

// storeFailure stores the failure, or with nil, that the tick has failed no more.
func (r *Run) storeFailure(ctx context.Context, tx pgx.Tx, failure error) error {
	tick, attempts, text := int64(0), 0, ""
	if failure != nil {
		tick, attempts, text = r.tick.UnixMicro(), r.attempts+1, strings.ReplaceAll(errs.Text(failure), "\x00", "")
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	_, err := tx.Exec(ctx, schema.Render(failSQL, r.job.client.Schema()), r.job.name, tick, attempts, text)
	return err
}

// checkRetry refuses a backoff that no tick leaves time for.
func (j *Job) checkRetry(s Schedule, tick time.Time) error {
	next := s.Next(tick)
	if tick.IsZero() || next.IsZero() || j.cfg.backoff < next.Sub(tick) {
		return nil
	}
	return errs.InvalidOption("schedule", "backoff %v is too long for ticks every %v: must be less, so that a failed run is repeated before the next tick", j.cfg.backoff, next.Sub(tick))
}
