package leader

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// minRetry and maxRetry bound the pauses of Run while the database is unreachable.
const minRetry, maxRetry = 100 * time.Millisecond, 5 * time.Second

// forever is the wait of Run, whatever the options say: a candidate that leaves the queue and campaigns
// again would go to its end each time, and a short wait would make that a loop without a pause.
const forever = time.Duration(math.MaxInt64)

// Func is the work of a leader. ctx is done when the leadership has ended, and when the leader is asked
// to resign. Then Func must return.
type Func func(ctx context.Context, t *Term) error

// Run is New and Election.Run.
func Run(ctx context.Context, client *pglock.Client, name string, fn Func, opts ...Option) error {
	e, err := New(client, name, opts...)
	if err != nil {
		return err
	}
	return e.Run(ctx, fn)
}

// Run campaigns with the payload of WithPayload, runs fn while this candidate leads, and campaigns
// again, until ctx is done. At most one fn runs at a time. The candidate stays in the queue until it is
// elected: pglock.WithWait does not apply.
//
// fn's context is done, and its cause tells why:
//   - ctx is done: ctx's cause.
//   - The leadership is lost: an error that wraps pglock.ErrLost.
//   - Somebody has called pglock.Client.RequestRelease, or the time of pglock.WithMaxHold is over:
//     ErrResignRequested. This candidate still leads until fn returns.
//
// When fn returns, Run resigns and goes to the end of the queue. If fn returns nil at once, and there is
// no other candidate, it is called again at once.
//
// Run returns ctx's cause when ctx is done. It returns fn's error if fn fails while it leads, and
// joins it with ctx's cause if fn fails for another reason than the end of ctx. An error of an fn whose
// leadership has ended is logged. Run returns an error of Campaign that does not pass by itself, such as
// pglock.ErrClosed, ErrLogin or ErrInvalidOption. While the database is unreachable, it tries again,
// and logs that at Warn. If fn panics, Run resigns, and the panic continues.
func (e *Election) Run(ctx context.Context, fn Func) error {
	if fn == nil {
		return invalidOption("function is nil: must be set")
	}
	pause := backoff.Backoff{First: minRetry, Max: maxRetry}
	for {
		t, err := e.campaignWith(ctx, e.cfg.payload, pglock.WithWait(forever))
		switch {
		case err == nil:
			pause.Reset()
			if err := e.lead(ctx, t, fn); err != nil {
				return err
			}
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, pglock.ErrUnavailable) || errors.Is(err, pglock.ErrClosed):
			return err
		}
		e.cfg.logger().Warn("pglock: can't campaign, trying again", "election", e.name, "error", err)
		_ = pause.Sleep(ctx) // Campaign looks at ctx
	}
}

// lead runs fn in a term, and resigns. It returns an error if Run must end.
func (e *Election) lead(ctx context.Context, t *Term, fn Func) error {
	end := t.run(ctx, fn)
	err, why := end.err, end.why
	if errors.Is(err, context.Canceled) && (end.asked || why != nil || ctx.Err() != nil) ||
		err != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ErrResignRequested)) {
		err = nil // that is how fn reports the end of its context
	}
	switch {
	case errors.Is(why, pglock.ErrClosed):
		return errs.Join(err, pglock.ErrClosed)
	case ctx.Err() != nil:
		return errs.Join(err, context.Cause(ctx))
	case errors.Is(why, pglock.ErrLost):
		if err != nil && !errors.Is(err, pglock.ErrLost) {
			e.cfg.logger().Warn("pglock: the work failed after its leadership was lost", "election", e.name, "token", t.lease.Token(), "error", err)
		}
		return nil
	}
	return err
}

// end is the end of a term of Run.
type end struct {
	err   error // of the work
	why   error // why the lease had ended before the work did, or nil
	asked bool  // somebody has requested the resignation
}

// run runs fn in the term, and resigns.
func (t *Term) run(ctx context.Context, fn Func) (e end) {
	base, cancel := context.WithCancelCause(ctx)
	work, stop := t.lease.WithContext(base) // not the other way around: its Err reads the clock
	var listening sync.WaitGroup
	returned := make(chan struct{})
	listening.Go(func() {
		select { // if both are ready, either is right: fn has returned
		case <-t.lease.ReleaseRequested():
			cancel(ErrResignRequested)
		case <-returned:
		}
	})
	defer func() { // without recover, so that a panic keeps its stack
		close(returned)
		listening.Wait()
		e.asked = errors.Is(context.Cause(base), ErrResignRequested)
		stop()
		cancel(nil)
		e.why = t.lease.Err()
		if failed := t.Resign(context.WithoutCancel(ctx)); e.why == nil && errors.Is(failed, pglock.ErrLost) {
			e.why = failed
		}
	}()
	return end{err: fn(work, t)}
}
