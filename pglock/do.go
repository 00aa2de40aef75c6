package pglock

import (
	"context"
	"errors"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Do acquires the lock of that name as Acquire does, with its errors, then runs fn, which WithWait
// does not bound, and releases the lock. fn's context carries the lease and is done when ctx is
// done or the lease is lost, with a cause that wraps ErrLost.
//
// Do returns nil if fn returned nil and the lease was held until fn returned or released it.
// Otherwise the error is fn's, joined with ErrLost if the lease was lost, with ErrClosed if the
// client was closed, and with the error of a failed release. If fn panics or calls runtime.Goexit,
// Do releases the lock, and the panic or exit continues.
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return c.Lock(name).Do(ctx, fn, opts...)
}

// TryDo is Do without waiting: if the lock is held, it returns the *BusyError of TryAcquire without
// running fn. It excludes only calls that overlap: see package schedule for jobs.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return c.Lock(name).TryDo(ctx, fn, opts...)
}

// WithJoin makes Do and TryDo run fn under the held lease of that lock which ctx carries (see
// FromContext). It has no effect without such a lease, nor in Acquire and TryAcquire, which then
// return a *HeldError.
//
// The lease keeps its TTL, holder and labels, and Do does not release it. If it ends while fn runs,
// Do joins its error to fn's, because the work was not covered to its end. Calls that join one
// lease do not exclude each other. A writer can't join a reader's lease, nor any call a
// semaphore's.
func WithJoin() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.join = true; return nil })
}

func (l Lock) do(ctx context.Context, fn func(context.Context, *Lease) error, opts []LeaseOption, how acquireMethod) error {
	if fn == nil {
		return invalidOption("do %q: function is nil: must be set", l.name)
	}
	cfg, err := l.configure(opts)
	switch {
	case err != nil:
		return err
	case cfg.join && l.isSemaphore():
		return invalidOption("semaphore %q: WithJoin: a semaphore's leases can't be joined: acquire permits for each of them", l.name)
	}
	outer, err := l.carriedBy(ctx)
	switch {
	case cfg.join && outer != nil:
		return outer.runJoined(ctx, fn)
	case err != nil:
		return err
	}
	held, err := l.acquireAs(ctx, cfg, how)
	if err != nil {
		return err
	}
	return held.run(ctx, fn)
}

// run runs fn under the lease and releases it.
func (l *Lease) run(ctx context.Context, fn func(context.Context, *Lease) error) (err error) {
	defer func() { // without recover, so that a panic keeps its stack
		closed := l.Err()
		if !errors.Is(closed, ErrClosed) {
			closed = nil // the lease is held, or lost (Release reports that), or released by fn
		}
		err = errs.Join(err, closed, l.Release(context.WithoutCancel(ctx)))
	}()
	if l.cfg.supersede {
		var end context.CancelFunc
		ctx, end = l.untilAsked(ctx)
		defer end()
	}
	ctx, stop := l.WithContext(ctx)
	defer stop()
	return l.client.reportRefused(ctx, l.fence, fn(ctx, l), observe.OutcomeUnfenced, fencing.ErrUnfenced, fencing.ErrOtherLock)
}

// runJoined runs fn under the lease and leaves the release to the call that acquired it.
func (l *Lease) runJoined(ctx context.Context, fn func(context.Context, *Lease) error) error {
	if ctx.Err() != nil {
		return &WaitError{Name: l.fence.Name, Cause: endOf(ctx)}
	}
	ctx, stop := l.WithContext(ctx)
	defer stop()
	err := fn(ctx, l)
	return errs.Join(err, l.Err())
}
