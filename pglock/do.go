package pglock

import (
	"context"
	"errors"

	"github.com/pglock/pglock-go/internal/errs"
)

// Do acquires the lock of that name, runs fn, and releases the lock. It waits for the lock as
// Acquire does, until ctx is done or the time of WithWait is over, with the errors of Acquire.
// WithWait does not bound fn.
//
// fn's context is done when ctx is done and when the lease is lost. Its cause then wraps ErrLost.
// fn guards writes that must not come late with l.Guard.
//
// fn's context carries the lease: see FromContext. A Do or Acquire of the same name under that
// context would wait for itself. It returns a *HeldError at once, or joins the lease: see WithJoin.
//
// Do returns nil if fn returned nil, and the lease was held until fn returned or released it.
// Otherwise the error is fn's, joined with ErrLost if the lease was lost, with ErrClosed if the
// client was closed, and with the error of a failed release. If fn panics or calls runtime.Goexit,
// the lock is released and the panic or exit continues.
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, name, c.Acquire, fn, opts)
}

// TryDo is Do without waiting for the lock: it runs fn if the lock is free. If the lock is held, fn
// does not run, and the error is a *BusyError (errors.Is ErrNotAcquired) with the holder and the
// remaining time of its lease.
//
// TryDo excludes calls that overlap. It does not keep a call from running again what another
// process has just done: for a job that must run once per tick, use package schedule.
func (c *Client) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, name, c.TryAcquire, fn, opts)
}

// acquireFunc is Client.Acquire, or another way to get a lease.
type acquireFunc func(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error)

// do runs fn under a lease from acquire.
func do(ctx context.Context, name string, acquire acquireFunc,
	fn func(ctx context.Context, l *Lease) error, opts []LeaseOption,
) (err error) {
	if fn == nil {
		return errs.InvalidOption("pglock", "do %q: function is nil: must be set", name)
	}
	l, err := acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer func() { // without recover, so that a panic keeps its stack
		closed := l.Err()
		if !errors.Is(closed, ErrClosed) {
			closed = nil // the lease is held, or lost (Release reports that), or released by fn
		}
		err = errs.Join(err, closed, l.Release(context.WithoutCancel(ctx)))
	}()
	ctx, stop := l.WithContext(ctx)
	defer stop()
	return fn(ctx, l)
}
