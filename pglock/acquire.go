package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// Acquire waits until the lock of that name is granted to this call, and returns the lease, which
// is renewed until it is released or lost, or the client is closed. The lease's Context has the
// values of ctx. All waiters of a client for one name share one row of lock_waiters.
//
// If ctx ends first, a grant that arrives later is revoked, or expires if the network delivers it
// too late. Acquire waits up to 20 ms for a statement in progress. If ctx carries a lease, it waits
// up to a second until the server knows that it has ended, because other calls can get ErrDeadlock
// until then.
//
// A wait that fails returns a *WaitError, which wraps ErrNotAcquired and the error and cause of
// ctx, ErrTimeout because of WithWait, ErrClosed, or ErrUnavailable after 30 s without an answer.
// If ctx carries a lease of this lock, Acquire returns a *HeldError at once.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.Lock(name).Acquire(ctx, opts...)
}

// TryAcquire acquires the lock of that name if it is free or its lease has expired. Otherwise it
// writes nothing and returns a *BusyError. A grant whose answer arrives too late is revoked.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.Lock(name).TryAcquire(ctx, opts...)
}

// acquireMethod acquires a lock by waiting (wait) or without (tryOnce).
type acquireMethod func(*acquisition, context.Context) (leasetable.Grant, error)

// acquire acquires the lock that cfg is for. The configuration is passed by reference so that the
// stack of a waiting call fits into 4 KiB.
func (c *Client) acquire(ctx context.Context, name string, cfg *leaseConfig, how acquireMethod) (l *Lease, err error) {
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	a := &acquisition{client: c, cfg: cfg, name: name, id: newRequestID(), began: time.Now()}
	// Events are raised after endCall, so that Close does not wait for an observer.
	defer func() { c.events.acquired(ctx, a, l, err) }()
	defer c.endCall()
	g, err := how(a, ctx)
	if err != nil {
		if a.lost > 0 {
			a.revokeLate(a.lost)
		}
		return nil, err
	}
	return c.newLease(ctx, a, g)
}

// tryOnce makes attempts, within limits, until the server answers.
func (a *acquisition) tryOnce(ctx context.Context) (leasetable.Grant, error) {
	const (
		tries    = 5 // while rows appear or requests are used up
		failures = 2 // the first may have met a connection that died long ago
	)
	a.facts.try = true
	a.awaitRemoval(ctx)
	var g leasetable.Grant
	var err error
	for failed := 0; failed < failures; {
		for range tries {
			if g, err = a.attempt(ctx, a.bargeOr(leasetable.NoTicket), false); err != nil || g.Outcome == leasetable.Granted || g.Outcome == leasetable.Busy {
				break
			}
		}
		switch {
		case err == nil && g.Outcome == leasetable.Granted:
			return g, nil
		case err == nil:
			return g, a.busyError(g)
		case ctx.Err() != nil || errors.Is(err, ErrClosed):
			return g, a.waitError(ctx, err)
		case !errors.Is(err, ErrUnavailable), errors.Is(err, errLateGrant):
			return g, err
		}
		failed++
	}
	return g, err
}
