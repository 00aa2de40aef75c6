package pglock

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable"
)

// maxReason is the longest reason of a revocation or a request in bytes.
const maxReason = 512

// Revoke ends the grant of the lock with that token, whoever holds it. At once its guards fail with
// ErrStale, it can't be renewed, and the lock is free for the next waiter, which is woken. Of a
// semaphore or a readers-writer lock, only the permits of that grant are free: see LockInfo.Grants
// for the tokens. Later grants are not affected.
//
// The holder learns of it with its next renewal, or at once if its client has a listening
// connection: after its first wait, or a call of Lease.ReleaseRequested or Watch. Its lease is then
// lost, with a *LostError that wraps ErrRevoked and has the reason. Until then it works on, so the
// rule that the holder stops first does not hold for Revoke, and writes that must not be late need
// Lease.Guard. Client.RequestRelease leaves the end to the holder instead.
//
// A guarded transaction of the holder that has begun before may still commit, and no other holder
// is granted the lock before it ends. Revoke waits for that, for a second at most. Then the error
// wraps ErrGuarded: the grant has ended, and another call of Revoke waits again.
//
// If the grant is not the current one, or was released, the error is a *StaleError, and if the name
// has no row, it wraps ErrNotFound; nothing is changed then. A grant that was revoked before is not
// an error. After ErrUnavailable the grant may have ended; call Revoke again. The reason may be
// empty, and has at most 512 bytes of UTF-8 without NUL.
func (c *Client) Revoke(ctx context.Context, name string, token fencing.Token, reason string) error {
	op := fmt.Sprintf("revoke grant %d of %q", token, name)
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
	err = c.store.AwaitGuards(ctx, fence, i.Permits)
	if leasetable.RowLocked(err) {
		return errs.Errorf("pglock: %s: the grant has ended: %w: call Revoke again to wait for its end", op, ErrGuarded)
	}
	return c.explainIn(ctx, op, err)
}

// RequestRelease asks the holder of the grant with that token to release the lock. The request is
// stored with the grant, and the holder sees it as Lease.ReleaseRequested, with its next renewal,
// or at once if its client has a listening connection, which ReleaseRequested opens. Whether and
// when it releases the lock is up to the holder. Of several requests, the first that it sees
// counts. Errors are those of Client.Revoke, except ErrGuarded.
func (c *Client) RequestRelease(ctx context.Context, name string, token fencing.Token, reason string) error {
	op := fmt.Sprintf("request the release of grant %d of %q", token, name)
	fence, err := c.beginGrantCall(name, token, reason, op)
	if err != nil {
		return err
	}
	defer c.endCall()
	i, err := c.store.RequestRelease(ctx, fence, reason)
	return c.grantCall(ctx, op, fence, i, err)
}

// beginGrantCall checks the arguments of a call that concerns a grant of any client. If it
// succeeds, endCall must follow.
func (c *Client) beginGrantCall(name string, token fencing.Token, reason, op string) (fencing.Fence, error) {
	fence := fencing.Fence{Schema: c.cfg.schema, Name: name, Token: token}
	if err := checkName(name); err != nil {
		return fence, err
	}
	switch {
	case token <= 0:
		return fence, invalidOption("%s: tokens begin at 1: use LockInfo.Token or BusyError.Token", op)
	case len(reason) > maxReason || !storable(reason):
		return fence, invalidOption("%s: reason %.64q: must be at most %d bytes of UTF-8 without NUL", op, reason, maxReason)
	}
	return fence, c.beginCall()
}

// grantCall returns the error of a grantCall, or nil.
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

// explainIn explains an error of the store in a call under ctx.
func (c *Client) explainIn(ctx context.Context, op string, err error) error {
	if err != nil && ctx.Err() != nil {
		return errs.Errorf("pglock: %s: %w", op, endOf(ctx))
	}
	return c.store.Explain(op, err)
}

// loseRevoked ends the lease as revoked, unless it has ended, and returns why it ended. name is the one
// whose grant was revoked.
func (l *Lease) loseRevoked(name, reason string) error {
	l.recordFailure(ErrRevoked)
	if reason == "" {
		return l.lose(name, "its grant was revoked")
	}
	return l.lose(name, fmt.Sprintf("its grant was revoked: %q", reason)) // any text, in one line
}

// closedChannel is closed. It is shared by all leases.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// releaseRequest is a request to the holder of a lease to release it. The lease's mu guards it.
type releaseRequest struct {
	made   bool
	reason string        // of the first request
	notify chan struct{} // nil until ReleaseRequested is called before a request
}

// ReleaseRequested returns a channel that is closed when the holder should release the lock,
// because of Client.RequestRelease or WithMaxHold. The lease is still held and renewed: the holder
// decides when to stop, and calls Release. ReleaseReason then returns why.
//
// A request arrives with the next renewal, or at once by a notification: the first call opens the
// client's listening connection. A lease that ends without a request does not close the channel:
// wait for Done as well.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	l.mu.Lock()
	r := &l.request
	if r.made && r.notify == nil {
		l.mu.Unlock()
		return closedChannel
	}
	first := r.notify == nil
	if first {
		r.notify = make(chan struct{})
	}
	notify := r.notify
	l.mu.Unlock()
	if first {
		l.client.signals.startListener()
	}
	return notify
}

// ReleaseReason returns the reason of the first request to release the lock. It is empty without a
// request.
func (l *Lease) ReleaseReason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.request.reason
}

// requestRelease tells the holder to release the lock. It reports whether this is the first request
// to a lease that is held. Later requests change nothing.
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
