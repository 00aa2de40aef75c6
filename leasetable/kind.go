package leasetable

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/leasetable/internal/store"
)

// kind is a kind of lock: all that the states of a call and of a lease do differently for it. A new
// kind needs its statements in internal/store, a type here, and the calls that configure it. Waiting,
// renewal, losing and releasing a lease are the same for all kinds.
type kind interface {
	// batched reports whether attempts and releases of several locks share a statement, and whether a
	// release can hand the lock off to a waiter of the same process.
	batched() bool

	// attempt sends the statements of one attempt. ctx is derived from the life of the client.
	attempt(ctx context.Context, c *Client, a *attempt) (store.Grant, error)

	// start makes the lease of a grant, or returns nil if the client was closed since the call began.
	start(ctx context.Context, c *Client, cfg *leaseConfig, g startedGrant) *Lease

	// release ends the grant of l. It reports whether the grant was current, and whether a waiter was
	// notified. ctx is derived from the life of the client.
	release(ctx context.Context, c *Client, l *Lease) (released, notified bool, err error)
}

// forLocks returns the configuration for that kind of lock: several names, or a name with permits.
func (c *leaseConfig) forLocks(names []string, permits store.Permits) *leaseConfig {
	cfg := *c
	cfg.names, cfg.permits = names, permits
	return &cfg
}

// kind returns the kind of lock that the configuration is for.
func (c *leaseConfig) kind() kind {
	switch {
	case c.names != nil:
		return severalKind{}
	case c.permits.Any():
		return permitsKind{}
	}
	return exclusiveKind{}
}

// exclusiveKind is a lock with one holder.
type exclusiveKind struct{}

func (exclusiveKind) batched() bool { return true }

// attempt tries the fast path. If that grants nothing, it finds out why.
func (exclusiveKind) attempt(ctx context.Context, c *Client, a *attempt) (store.Grant, error) {
	r := a.request()
	if !a.expectHeld {
		g, err := c.store.AcquireFast(ctx, r)
		if err != nil || g.Outcome == store.Granted {
			return g, err
		}
	}
	grants, err := c.store.AcquireFull(ctx, []*store.Request{r})
	if store.RowLocked(err) { // another client's insert of the same name is in progress
		return store.Grant{Outcome: store.Busy}, nil
	}
	return grants[0], err // without an outcome: another client inserted its row meanwhile
}

func (exclusiveKind) start(ctx context.Context, c *Client, cfg *leaseConfig, g startedGrant) *Lease {
	return c.startLease(ctx, cfg, g)
}

func (exclusiveKind) release(ctx context.Context, c *Client, l *Lease) (released, notified bool, err error) {
	return c.store.Release(ctx, l.fence, l.cfg.minHold)
}

// permitsKind is a semaphore or a readers-writer lock.
type permitsKind struct{}

func (permitsKind) batched() bool { return false }

func (permitsKind) attempt(ctx context.Context, c *Client, a *attempt) (store.Grant, error) {
	g, err := c.store.AcquirePermits(ctx, a.request())
	if store.RowLocked(err) { // many others acquire and release permits
		return store.Grant{Outcome: store.Busy}, nil
	}
	return g, err
}

func (permitsKind) start(ctx context.Context, c *Client, cfg *leaseConfig, g startedGrant) *Lease {
	return c.startLease(ctx, cfg, g)
}

func (permitsKind) release(ctx context.Context, c *Client, l *Lease) (released, notified bool, err error) {
	return c.store.ReleasePermits(ctx, l.fence)
}

// severalKind is several names at once. Their lease has a part for each name, which is renewed and
// released as a lock with one holder.
type severalKind struct{ exclusiveKind }

func (severalKind) batched() bool { return false }

func (severalKind) attempt(ctx context.Context, c *Client, a *attempt) (store.Grant, error) {
	r := a.request()
	g, err := c.store.AcquireAll(ctx, r)
	switch {
	case store.RowLocked(err): // another client's insert of a name is in progress
		return store.Grant{Outcome: store.Busy, Name: r.All[0]}, nil
	case err == nil && g.Outcome == store.Spent: // the grants of the other names may be live
		c.revoke(r)
	}
	return g, err
}

func (severalKind) start(ctx context.Context, c *Client, cfg *leaseConfig, g startedGrant) *Lease {
	return c.startAll(ctx, cfg, g)
}

// KindError says that a name is used as another kind of lock.
type KindError struct {
	Name   string
	Wanted int // the number of permits that the caller meant; 0: a lock with one holder
	Found  int // the number that it has
}

func (e *KindError) Error() string {
	return fmt.Sprintf("%v: %q is %s, not %s", ErrKind, e.Name, describeKind(e.Found), describeKind(e.Wanted))
}

// Unwrap makes errors.Is find ErrKind.
func (e *KindError) Unwrap() error { return ErrKind }

// describeKind describes the kind of lock with that number of permits.
func describeKind(permits int) string {
	switch permits {
	case 0:
		return "a lock with one holder"
	case allPermits:
		return "a readers-writer lock"
	}
	return fmt.Sprintf("a semaphore with %d permits", permits)
}
