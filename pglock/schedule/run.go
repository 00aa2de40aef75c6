package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Run is a tick that this process runs. Call End, Fail or Abandon exactly once. Until then this process
// begins no other tick of the same Job.
type Run struct {
	job      *Job
	lease    *pglock.Lease
	tick     time.Time
	until    time.Time // when it is too late to repeat the run, or zero
	attempts int       // of the tick, that have failed
	began    time.Time // by the monotonic clock
}

// Lease returns the job's lease, for guards and for the context of the work: see
// pglock.Lease.WithContext. It is released by End, Fail and Abandon.
func (r *Run) Lease() *pglock.Lease { return r.lease }

// Tick returns the tick that runs.
func (r *Run) Tick() time.Time { return r.tick }

// End records the tick as run and releases the lease. While the database can't be reached it tries
// again, as long as the lease is held, because a tick that is not recorded runs again elsewhere. If
// the lease was lost, the tick is not recorded, another process may run it too, and the error wraps
// pglock.ErrLost or fencing.ErrStale. When ctx is done, End has 10 s left to record the tick, and
// then 10 s to release the lease.
func (r *Run) End(ctx context.Context) error {
	_, err := r.end(ctx, nil)
	return err
}

// Fail ends a run that has failed for that reason, which must not be nil, and otherwise is like End.
// It reports whether the run is to be repeated: see WithRetry. The tick is then not recorded, and
// this process calls Begin again, also because others wait for the lease.
func (r *Run) Fail(ctx context.Context, reason error) (again bool, err error) {
	again, err = r.end(ctx, reason)
	return again && err == nil, err
}

func (r *Run) end(ctx context.Context, failure error) (again bool, err error) {
	again = failure != nil && r.repeats()
	if err = r.lease.Err(); err == nil {
		err = r.record(ctx, failure, again)
	}
	outcome := observe.OutcomeDone
	switch {
	case err != nil:
		outcome = observe.OutcomeAbandoned
	case failure != nil:
		outcome = observe.OutcomeFailed
	}
	return again, errs.Join(err, r.leave(ctx, outcome, errs.Join(failure, err)))
}

// Abandon releases the lease without recording the tick, so that another process may run it.
// Abandon continues for up to 10 s when ctx is done.
func (r *Run) Abandon(ctx context.Context) error { return r.leave(ctx, observe.OutcomeAbandoned, nil) }

func (r *Run) leave(ctx context.Context, outcome observe.Outcome, err error) error {
	defer func() { <-r.job.sem }()
	r.job.observe(ctx, observe.ResultEvent{Token: r.lease.Token(), Outcome: outcome, Duration: time.Since(r.began), Err: err})
	return release(ctx, r.lease)
}

// endTimeout is how long recording a tick continues after ctx is done, and also bounds the release.
const endTimeout = 10 * time.Second

func release(ctx context.Context, lease *pglock.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// record raises the mark to the tick, unless the run is to be repeated, and stores a failure, guarded
// by the lease. It repeats that while the lease is held. A try whose reply was lost has raised the
// mark: the same tick may come again.
func (r *Run) record(ctx context.Context, failure error, again bool) error {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if backoff.Sleep(late, endTimeout) == nil {
			cancel()
		}
	})()
	held, stop := r.lease.WithContext(late)
	defer stop()
	logged := false
	return pgtx.Persist(held, func(ctx context.Context) error {
		err := r.job.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			err := r.lease.Guard(ctx, tx)
			if err == nil && (failure != nil || r.attempts > 0) {
				err = r.storeFailure(ctx, tx, failure)
			}
			if err == nil && !again {
				err = r.raiseMark(ctx, tx)
			}
			return err
		})
		if pgtx.Transient(err) && !logged {
			logged = true
			r.job.cfg.logger().Warn("pglock: tick can't be recorded, trying again", "job", r.job.name, "tick", r.tick, "error", err)
		}
		return err
	})
}

func (r *Run) raiseMark(ctx context.Context, tx pgx.Tx) error {
	err := r.job.advance(ctx, tx, fencing.Token(r.tick.UnixMicro()))
	if errors.Is(err, fencing.ErrStale) { // the lease allows one run at a time: the mark was set by hand
		return r.job.refuse(ErrDone, "a tick after %s was recorded meanwhile: %w", format(r.tick), err)
	}
	return err
}
