package pglock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/observe"
)

// HandOver ends the lease in this process, so that another one can continue the grant by Adopt with
// the returned fence. Stop the protected work first, because HandOver ends the Context, and Err
// then wraps ErrReleased. From then on neither renewals nor Release nor Close affect the lock.
//
// The other process must adopt the grant before it expires. Usually two thirds of the TTL are left,
// but less after failed renewals, so call Lease.Extend first if the fence takes longer to arrive.
//
// HandOver does not contact the database. It returns the error of Err if the lease has ended, and
// refuses a lease of several names.
func (l *Lease) HandOver() (fencing.Fence, error) {
	if err := l.Err(); err != nil {
		return fencing.Fence{}, err
	}
	if l.several() {
		return fencing.Fence{}, l.errSeveral("hand over")
	}
	if !l.end(errHandedOver) {
		return fencing.Fence{}, l.Err()
	}
	l.client.registry.remove(l)
	l.client.events.releaseEnds(l, time.Now(), observe.ReleaseEvent{HandedOver: true})
	return l.fence, nil
}

// Adopt returns a lease of the grant that f identifies, which another process has handed over with
// [Lease.HandOver]. It renews the grant at once with the TTL of this client and opts, and replaces
// its holder name, while token and labels stay. Because the fence has no holding rules, pass
// WithMaxHold and WithMinHold, which count from the grant, and WithLockDelay again.
//
// If the grant is not current, Adopt changes nothing and returns a *StaleError. A fence that no
// grant of this client's schema can have is refused with fencing.ErrInvalidFence, and WithMinHold
// is refused for a lock with permits. After ErrUnavailable or the end of ctx, the grant may be
// renewed.
//
// The database can't distinguish two users of one token, so a process that has not called HandOver
// holds the lease too, until one of them releases it.
func (c *Client) Adopt(ctx context.Context, f fencing.Fence, opts ...LeaseOption) (*Lease, error) {
	cfg, err := c.cfg.leaseFor([]string{f.Name}, opts)
	if err != nil {
		return nil, err
	}
	if _, err := f.MarshalText(); err != nil {
		return nil, errs.Errorf("pglock: adopt %q: %w", f, err)
	}
	if f.Schema = cmp.Or(f.Schema, schema.Default); f.Schema != c.cfg.schema {
		return nil, errs.Errorf("pglock: adopt %q: %w: its schema is %q: must be the client's, %q", f, fencing.ErrInvalidFence, f.Schema, c.cfg.schema)
	}
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	if err := c.checkMinHold(ctx, f, cfg); err != nil {
		return nil, err
	}
	began := c.events.now()
	got, err := c.sendAdopt(ctx, f, cfg)
	switch {
	case err != nil:
		return nil, c.explainIn(ctx, fmt.Sprintf("adopt %q", f), err)
	case got.Outcome == "":
		row, _, err := c.store.Get(ctx, f.Name)
		if err != nil {
			return nil, c.explainIn(ctx, fmt.Sprintf("adopt %q", f), err)
		}
		return nil, errs.Errorf("pglock: adopt %q: %w", f, &fencing.StaleError{Resource: f.Name, Token: f.Token, Current: row.Token})
	case !time.Now().Before(cfg.deadline(got.Sent, got.Remaining, cfg.ttl)):
		return nil, c.store.Explain(fmt.Sprintf("adopt %q", f), errLateGrant)
	}
	l := c.startLease(ctx, cfg.forLock(Lock{permits: got.Permits}), startedGrant{fence: f, id: got.ID, sent: got.Sent, remaining: got.Remaining, granted: got.Sent.Add(-got.Age)})
	if l == nil {
		return nil, ErrClosed
	}
	c.signals.notify(l) // a request to release it may have arrived before
	c.events.adopted(ctx, l, began)
	return l, nil
}

// checkMinHold refuses WithMinHold for a lock with permits before Adopt would keep the permits for
// that time. The check stays valid, because a name is of one kind while a grant lives.
func (c *Client) checkMinHold(ctx context.Context, f fencing.Fence, cfg *leaseConfig) error {
	if cfg.minHold == 0 {
		return nil
	}
	row, _, err := c.store.Get(ctx, f.Name)
	if err != nil {
		return c.explainIn(ctx, fmt.Sprintf("adopt %q", f), err)
	}
	if row.Kind == inspect.Semaphore || row.Kind == inspect.RWLock {
		return invalidOption("adopt %q: WithMinHold: must be 0 for a lock with permits", f)
	}
	return nil
}

// sendAdopt adopts the grant on the server. While another transaction has locked the row, and after
// a temporary failure, it tries again.
func (c *Client) sendAdopt(ctx context.Context, f fencing.Fence, cfg *leaseConfig) (got leasetable.Renewal, err error) {
	err = c.retryChange(ctx, func(ctx context.Context) error {
		got, err = c.store.Adopt(ctx, f, cfg.holder, cfg.grantTTL())
		if err == nil && got.Outcome == leasetable.Busy {
			return errs.Errorf("%w: %w", ErrUnavailable, errRowLocked)
		}
		return err
	})
	return got, err
}
