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

// forever is the wait of Run, regardless of the options, because a candidate that leaves the queue
// and campaigns again would go to its end each time.
const forever = time.Duration(math.MaxInt64)

// Func is the work of a leader. It must return when ctx is done, which is when the leadership has
// ended or the leader is asked to resign.
type Func func(ctx context.Context, t *Term) error

// Run calls New, and Run of the Election.
func Run(ctx context.Context, client *pglock.Client, name string, fn Func, opts ...Option) error {
	e, err := New(client, name, opts...)
	if err != nil {
		return err
	}
	return e.Run(ctx, fn)
}

// Run campaigns with the payload of WithPayload, runs fn while this candidate leads, and campaigns
// again, until ctx is done. At most one fn runs at a time. The candidate stays in the queue until
// it is elected: pglock.WithWait does not apply.
//
// The cause of fn's context is ctx's cause; an error that wraps pglock.ErrLost if the leadership is
// lost; or ErrResignRequested, after pglock.Client.RequestRelease or the time of
// pglock.WithMaxHold, when this candidate still leads until fn returns. Then Run resigns and goes
// to the end of the queue. If fn returns nil, and there is no other candidate, it is called again
// at once.
//
// Run returns ctx's cause when ctx is done. It returns fn's error if fn fails while it leads, and
// joins it with ctx's cause if fn fails for another reason than the end of ctx. An error of an fn
// whose leadership has ended is logged. Run returns an error of Campaign that does not pass by
// itself, such as pglock.ErrClosed or pglock.ErrInvalidOption. While the database is unreachable or
// rejects the login, as during a rotation of passwords, it tries again, and logs that at Warn. If
// fn panics, Run resigns, and the panic continues.
func (e *Election) Run(ctx context.Context, fn Func) error {
	if fn == nil {
		return errs.InvalidOption("leader", "function is nil: must be set")
	}
	pause := backoff.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second} // while the database is unreachable
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
		case errors.Is(err, pglock.ErrClosed), !errors.Is(err, pglock.ErrUnavailable) && !errors.Is(err, pglock.ErrLogin):
			return err
		}
		e.cfg.logger().Warn("pglock: can't campaign, trying again", "election", e.name, "error", err)
		_ = pause.Sleep(ctx) // Campaign looks at ctx
	}
}

// lead runs fn in a term, and resigns. It returns an error if Run must end.
func (e *Election) lead(ctx context.Context, t *Term, fn Func) error {
	why, asked, err := t.run(ctx, fn)
	if errors.Is(err, context.Canceled) && (asked || why != nil || ctx.Err() != nil) ||
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

// run runs fn in the term, and resigns. It returns why the lease had ended before the work did, or
// nil, whether a resignation was requested, and fn's error.
func (t *Term) run(ctx context.Context, fn Func) (why error, asked bool, err error) {
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
	defer func() { // no recover, so that a panic keeps its stack
		close(returned)
		listening.Wait()
		asked = errors.Is(context.Cause(base), ErrResignRequested)
		stop()
		cancel(nil)
		why = t.lease.Err()
		if failed := t.Resign(context.WithoutCancel(ctx)); why == nil && errors.Is(failed, pglock.ErrLost) {
			why = failed
		}
	}()
	return nil, false, fn(work, t)
}
