package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// maxReason is the longest reason of a revocation or a request in bytes.
const maxReason = 512

// Revoke ends the grant of the lock with that token, whichever client holds it. At once its guards
// fail with ErrStale, it can't be renewed, and its lock (or only its permits) is free for the next
// waiter, which is woken. The holder notices with its next renewal, or at once while its client has
// a listening connection (see WithMaxConns). Its *LostError wraps ErrRevoked and has the reason,
// 512 bytes of UTF-8 without NUL at most. Until then only Guard stops its writes.
//
// A guarded transaction of the holder that began before may still commit, and no other holder is
// granted the lock before it ends. Protected tables refuse what it writes from now on. Revoke waits
// for that for at most a second, and then returns an error that wraps ErrGuarded, although the
// grant has ended. A repeated call waits again.
//
// If the grant is not the current one, or was released, Revoke changes nothing and returns a
// *StaleError, or ErrNotFound if the name has no row. A repeated revocation succeeds, so call
// Revoke again after ErrUnavailable. The table operator_actions has the latest revocations and
// requests, with the role and the reason: name the person who acts in the reason.
func (c *Client) Revoke(ctx context.Context, name string, token fencing.Token, reason string) error {
	op := fmt.Sprintf("revoke grant %d of %q", token, name)
	ctx, cancel := outlasting(ctx, func(l *Lease) bool { return l.fence.Token == token && l.hasName(name) })
	defer cancel()
	fence, err := c.beginGrantCall(name, token, reason, op)
	if err != nil {
		return err
	}
	defer c.endCall()
	i, err := c.store.RevokeGrant(ctx, fence, reason)
	if err := c.grantCall(ctx, op, fence, i, err); err != nil {
		return err
	}
	for _, l := range c.registry.withToken(token) {
		if l.hasName(name) {
			_ = l.loseRevoked(name, reason) // the error is the lease's
		}
	}
	err = c.store.AwaitGuards(ctx, fence)
	if link.RowLocked(err) {
		return errs.Errorf("pglock: %s: the grant has ended: %w: call Revoke again to wait for its end", op, ErrGuarded)
	}
	return c.explainIn(ctx, op, err)
}

// RequestRelease asks the holder of the grant with that token to release the lock, but the holder
// decides whether and when. Lease.ReleaseRequested reports the first request for a grant, which is
// stored with it. Errors are those of Client.Revoke, except ErrGuarded.
func (c *Client) RequestRelease(ctx context.Context, name string, token fencing.Token, reason string) error {
	op := fmt.Sprintf("request the release of grant %d of %q", token, name)
	ctx, cancel := outlasting(ctx, func(l *Lease) bool { return l.fence.Token == token && l.hasName(name) })
	defer cancel()
	fence, err := c.beginGrantCall(name, token, reason, op)
	if err != nil {
		return err
	}
	defer c.endCall()
	i, err := c.store.RequestRelease(ctx, fence, reason)
	return c.grantCall(ctx, op, fence, i, err)
}

// beginGrantCall checks the arguments of a call that concerns a grant of any client, and endCall
// must follow if it succeeds.
func (c *Client) beginGrantCall(name string, token fencing.Token, reason, op string) (fencing.Fence, error) {
	fence := fencing.Fence{Schema: c.cfg.schema, Name: name, Token: token}
	if err := CheckName(name); err != nil {
		return fence, err
	}
	switch {
	case token <= 0:
		return fence, invalidOption("%s: tokens begin at 1: use the Token of Client.Get or BusyError.Token", op)
	case len(reason) > maxReason || !storable(reason):
		return fence, invalidOption("%s: reason %.64q: must be at most %d bytes of UTF-8 without NUL", op, reason, maxReason)
	}
	return fence, c.beginCall()
}

// grantCall returns the error of a call that concerns a grant, or nil.
func (c *Client) grantCall(ctx context.Context, op string, fence fencing.Fence, i leasetable.GrantCall, err error) error {
	switch {
	case err != nil:
		return c.explainIn(ctx, op, err)
	case !i.Found:
		return fmt.Errorf("%w: %q", ErrNotFound, fence.Name)
	case !i.Done:
		return errs.Errorf("pglock: %s: %w", op, &fencing.StaleError{Resource: fence.Name, Token: fence.Token, Current: i.Current})
	}
	return nil
}

// outlasting returns a context for a call that ends leases. If ctx carries one of them, the call
// itself would end ctx before its answer, so it has timing.StatementBound instead.
func outlasting(ctx context.Context, ends func(*Lease) bool) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil || !slices.ContainsFunc(carriedLeases(ctx), ends) {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timing.StatementBound)
}

// explainIn explains an error of the store in a call under ctx, or returns nil for nil.
func (c *Client) explainIn(ctx context.Context, op string, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrClosed) {
		return errs.Errorf("pglock: %s: %w", op, endOf(ctx))
	}
	return c.store.Explain(op, err)
}

// loseRevoked ends the lease as revoked, unless it has ended, and returns the reason of its end.
// name is the one whose grant was revoked.
func (l *Lease) loseRevoked(name, reason string) error {
	l.recordFailure(ErrRevoked)
	if reason == "" {
		return l.lose(name, "its grant was revoked")
	}
	return l.lose(name, fmt.Sprintf("its grant was revoked: %q", reason)) // quoted, so that any text stays in one line
}

// releaseRequest is a request to the holder of a lease to release it. The lease's mu guards it.
type releaseRequest struct {
	made   bool
	reason string        // of the first request
	notify chan struct{} // nil until ReleaseRequested is called
}

// ReleaseRequested returns a channel that is closed when the holder should release the lock,
// because of Client.RequestRelease or WithMaxHold. The holder decides when to stop and to call
// Release.
//
// A request arrives with the next renewal, or at once by a notification, for which the first call
// opens the client's listening connection. A lease that ends without a request does not close the
// channel, so wait for Done as well.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	l.mu.Lock()
	r := &l.request
	first := r.notify == nil
	if first {
		r.notify = make(chan struct{})
	}
	if first && r.made {
		close(r.notify)
	}
	notify, listen := r.notify, first && !r.made
	l.mu.Unlock()
	if listen {
		l.client.signals.startListener()
	}
	return notify
}

// awaitsRequest reports whether the holder waits for a request that was not made yet.
func (l *Lease) awaitsRequest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.request.notify != nil && !l.request.made
}

// ReleaseReason returns the reason of the first request to release the lock, or the empty string
// without one.
func (l *Lease) ReleaseReason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.request.reason
}

// requestRelease notifies the holder that it should release the lock. It reports whether this is
// the first request to a lease that is held, because later requests change nothing.
func (l *Lease) requestRelease(reason string) bool {
	l.mu.Lock()
	r := &l.request
	first := l.ended == nil && !r.made
	if first {
		r.made, r.reason = true, reason
		if r.notify != nil {
			close(r.notify)
		}
	}
	l.mu.Unlock()
	return first
}
