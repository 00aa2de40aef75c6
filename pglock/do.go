package pglock

import (
	"context"
	"errors"
	"fmt"
)

// Do runs fn while it holds the lock of that name, and releases it afterwards. It
// waits for the lock until ctx is done, like Acquire.
//
// fn's context is done when ctx is, and when the lease is lost; its cause then wraps
// ErrLost. What fn must not write late it guards with the lease (l.Guard).
//
// Do returns nil only if fn returned nil and the lease was held until then, or until
// fn released it. Its error is fn's, joined with the loss (ErrLost), with the end of
// the client (ErrClosed), or with a failed release. When fn panics, the lock is
// released and the panic goes on; so too for runtime.Goexit.
func (c *Client) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) (err error) {
	if fn == nil {
		return fmt.Errorf("%w: the function is nil", ErrInvalidOption)
	}
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer func() { // not by recover: a panic keeps its stack
		early := l.Err()
		if !errors.Is(early, ErrClosed) {
			early = nil // held until now; or lost, which Release tells; or released by fn
		}
		for _, e := range []error{early, l.Release(context.WithoutCancel(ctx))} {
			if e != nil && !errors.Is(err, e) {
				err = errors.Join(err, e)
			}
		}
	}()
	ctx, stop := during(ctx, l)
	defer stop()
	return fn(ctx, l)
}

// during returns a context that is done when parent is or when l has ended.
func during(parent context.Context, l *Lease) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	unlink := context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) })
	return &duringContext{ctx, l.Context(), cancel}, func() {
		unlink()
		cancel(nil)
	}
}

// duringContext asks the lease as well, which looks at the clock: AfterFunc takes
// a moment, and a process that slept past the deadline must not use that moment.
type duringContext struct {
	context.Context                 //nolint:containedctx // it is a context itself
	lease           context.Context //nolint:containedctx // likewise
	cancel          context.CancelCauseFunc
}

func (c *duringContext) Err() error {
	if c.lease.Err() != nil {
		c.cancel(context.Cause(c.lease))
	}
	return c.Context.Err()
}
