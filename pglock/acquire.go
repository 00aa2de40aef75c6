package pglock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// Acquire waits until the lock of that name is granted to this call, and returns the lease, which
// is renewed until it is released or lost, or the client is closed. The lease's Context has the
// values of ctx. A waiting call holds no connection and no transaction, and all waiters of a client
// for one name share one row of lock_waiters.
//
// If ctx ends first, a grant that arrives later is revoked, or expires if a broken network delivers
// it much later. Acquire waits up to 20 ms for a statement in progress.
//
// A wait that fails returns a *WaitError, which wraps ErrNotAcquired and the error and cause of
// ctx, ErrTimeout because of WithWait, ErrClosed, or ErrUnavailable after 30 s without an answer.
// If ctx carries a lease of this lock, Acquire returns a *HeldError at once, because it would wait
// for itself.
func (c *Client) Acquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.Lock(name).Acquire(ctx, opts...)
}

// TryAcquire acquires the lock of that name if it is free or its lease has expired. Otherwise it
// writes nothing and returns a *BusyError, which describes the blocking grant. A grant whose answer
// arrives too late is revoked.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...LeaseOption) (*Lease, error) {
	return c.Lock(name).TryAcquire(ctx, opts...)
}

// acquisition is the state of one call of Acquire or TryAcquire.
type acquisition struct {
	client *Client
	cfg    *leaseConfig
	name   string // of several names: their display name
	id     string // of the request; all attempts with an unknown effect share it
	began  time.Time

	// uncertain reports that an attempt's answer was lost, so the server may hold a grant for this
	// call that the client does not know of.
	uncertain bool

	// attempted reports that the call has had the one attempt that every call has, because the
	// server has answered that the lock is held, or has not answered.
	attempted bool
	limit     *waitLimit // of WithWait, or nil

	facts acquireFacts
}

// acquireFacts are facts for the events of an acquisition. See observe.AcquireEvent.
type acquireFacts struct {
	try, queued, handedOff bool
	attempts, ahead        int
	blocker                fencing.Token
}

// sawAhead records the number of waiters in other processes, until the WaitEvent.
func (f *acquireFacts) sawAhead(n int) {
	if !f.queued {
		f.ahead = n
	}
}

// acquireMethod acquires a lock by waiting (wait) or without (tryOnce).
type acquireMethod func(*acquisition, context.Context) (leasetable.Grant, error)

// acquire acquires the lock that cfg is for. The configuration is passed by reference so that the
// stack of a waiting call fits into 4 KiB.
func (c *Client) acquire(ctx context.Context, name string, cfg *leaseConfig, how acquireMethod) (l *Lease, err error) {
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	a := newAcquisition(c, name, cfg)
	// Events are raised after endCall, so that Close does not wait for an observer.
	defer func() { c.events.acquired(ctx, a, l, err) }()
	defer c.endCall()
	g, err := how(a, ctx)
	if err != nil {
		if a.uncertain {
			c.revoke(a.request(a.id))
		}
		return nil, err
	}
	return c.newLease(ctx, a, g)
}

func newAcquisition(c *Client, name string, cfg *leaseConfig) *acquisition {
	return &acquisition{client: c, cfg: cfg, name: name, id: newRequestID(), began: time.Now()}
}

// request returns the request with that ID, without a ticket.
func (a *acquisition) request(id string) *leasetable.Request {
	return a.cfg.request(a.name, id)
}

// names returns the names that the call is for, sorted.
func (a *acquisition) names() []string {
	if a.cfg.names == nil {
		return []string{a.name}
	}
	return a.cfg.names
}

func (a *acquisition) busyError(g leasetable.Grant) *BusyError {
	name := cmp.Or(g.Name, a.name)
	l := a.client.registry.newestOf(name)
	return &BusyError{
		Name: name, Holder: g.Holder, Token: g.Token, Remaining: g.Remaining,
		ThisClient: l != nil && l.Token() == g.Token,
	}
}

// localHolder returns the holder that this process knows of without an attempt, or nil.
func (a *acquisition) localHolder() *BusyError {
	l := a.client.registry.newestOf(a.name)
	if held := l != nil && l.Err() == nil; !held {
		return nil
	}
	return &BusyError{
		Name: a.name, Holder: l.Holder(), Token: l.Token(), Remaining: time.Until(l.Deadline()) + l.cfg.margin,
		ThisClient: true,
	}
}

// waitError returns the error of a call that gave up, with last as the last obstacle.
func (a *acquisition) waitError(ctx context.Context, last error) error {
	cause := ErrClosed
	if ctx.Err() != nil {
		cause = endOf(ctx)
	}
	if errors.Is(last, cause) || errors.Is(last, ErrClosed) {
		last = nil
	}
	return &WaitError{Name: a.name, Waited: time.Since(a.began), Cause: cause, Last: last}
}

// revoke ends the grant of r in the background, if the server has made one. The caller must be
// inside a counted call. A server that can't be reached for a TTL lets the grant expire.
//
// Because the acquire statement may still be on its way to the server, or past the point where it
// can be canceled, revoke tries again after each of timing.RevokePauses until it finds a grant.
func (c *Client) revoke(r *leasetable.Request) {
	c.background(min(r.TTL, timing.OutagePatience), func(ctx context.Context) {
		for n := range len(timing.RevokePauses) + 1 {
			revoked := false
			err := retry(ctx, nil, func(ctx context.Context) (err error) {
				revoked, err = c.store.Revoke(ctx, r)
				return err
			})
			if err != nil {
				c.cfg.logger.Warn("pglock: could not revoke a late grant; it expires after its TTL",
					"name", r.Name, "ttl", r.TTL, "error", err)
			}
			if err != nil || revoked || n == len(timing.RevokePauses) {
				return
			}
			closing := c.closing
			if n == 0 {
				closing = nil // Close waits for the second try, because most late statements have ended by then
			}
			select { // if more than one case is ready, a needless try is harmless
			case <-time.After(timing.RevokePauses[n]):
			case <-ctx.Done():
				return
			case <-closing: // Close does not wait longer for an unlikely grant
				return
			}
		}
	})
}

// endOf returns the error of ctx, and its cause if that differs. If WithWait ended ctx first, it
// returns ErrTimeout alone.
func endOf(ctx context.Context) error {
	if context.Cause(ctx) == errWaitOver { //nolint:errorlint // the caller's own cause may wrap ErrTimeout
		return ErrTimeout
	}
	return errs.ContextErr(ctx)
}
