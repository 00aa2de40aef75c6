package leasetable

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// A context that a lease has given out carries the lease: Lease.Context, Lease.WithContext, and the
// context of the function that pglock.Do calls. A call under such a context that asks for the same
// lock would wait for itself. So it fails at once, or joins the lease.
//
//	ctx carries      state of the lease      Acquire, TryAcquire     with WithJoin
//	no lease         -                       as usual                as usual
//	a lease          released or lost        as usual                as usual
//	a lease          held                    *HeldError              a joined lease
//
// A semaphore grants further permits to such a call, if its contexts carry few enough of them.

// WithJoin makes Acquire and TryAcquire join the lease of that name which ctx carries (see
// FromContext), if it is held. Otherwise they acquire the lock as usual.
//
// A joined lease is the same grant, with the same token, fence, holder, deadline and renewals. The
// other options have no effect on it: TTL, holder and labels stay as they are.
//   - Release ends the joined lease only, without contacting the database. The lock stays held until
//     the outer lease is released.
//   - Extend extends the grant, and so the outer lease and every lease that has joined it.
//   - When the outer lease is lost, released, or closed with its client, the joined lease ends with
//     it: Context is done, Err returns the reason, and Release returns it too, since the joined
//     work was not covered to its end.
//
// Joined leases do not exclude each other: goroutines that join one lease run at the same time.
func WithJoin() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.join = true; return nil })
}

// FromContext returns the lease of the lock name that ctx carries: the innermost one if there are
// several. It reports false if ctx carries none. The lease may have ended: see Lease.Err.
func FromContext(ctx context.Context, name string) (*Lease, bool) {
	l, ok := ctx.Value(&leaseQuery{name: name}).(*Lease)
	return l, ok
}

// anyLease is the key of the innermost lease that a context carries.
type anyLease struct{}

// leaseQuery is the key of the leases that a context carries. It matches by its fields.
type leaseQuery struct {
	name string
	held bool    // skip leases that have ended
	of   *Client // nil: of any client
}

func (q *leaseQuery) matches(l *Lease) bool {
	return l.hasName(q.name) && (q.of == nil || q.of == l.client) && (!q.held || l.Err() == nil)
}

// Value returns the lease if key asks for it, and otherwise the value of the parent.
func (c *leaseContext) Value(key any) any {
	switch k := key.(type) {
	case anyLease:
		return c.lease
	case *leaseQuery:
		if k.matches(c.lease) {
			return c.lease
		}
	case *carriedPermits:
		if k.of == c.lease.client && k.name == c.lease.fence.Name && c.lease.Err() == nil {
			k.weights[c.lease.root()] = c.lease.permits().Weight
		}
	}
	return c.Context.Value(key)
}

// carriedPermits is a key that collects the permits of the held leases that a context carries.
type carriedPermits struct {
	name    string
	of      *Client
	weights map[*Lease]int
}

// heldIn returns the lease of the lock name that ctx carries and that is held, or nil.
//
// A lease of another client is of the same lock only if both clients use one database. The row
// tells: it has the request of its grant, a random UUID. If the server does not answer, heldIn
// returns nil, and the acquire that follows reports the failure.
func (c *Client) heldIn(ctx context.Context, name string) *Lease {
	if ctx.Value(anyLease{}) == nil { // saves an allocation in most calls
		return nil
	}
	l, ok := ctx.Value(&leaseQuery{name: name, held: true}).(*Lease)
	if !ok {
		return nil
	}
	if own, ok := ctx.Value(&leaseQuery{name: name, held: true, of: c}).(*Lease); ok {
		return own
	}
	if l.fence.Schema != c.cfg.schema || l.grantID == "" || c.beginCall() != nil {
		return nil
	}
	defer c.endCall()
	if granted, err := c.store.GrantedTo(ctx, name, l.grantID); err != nil || !granted {
		return nil
	}
	return l
}

// join returns a lease that shares the grant of l. ctx gives it its values.
func (l *Lease) join(ctx context.Context) *Lease {
	outer := l.root()
	j := &Lease{client: outer.client, fence: outer.fence, cfg: outer.cfg, grantID: outer.grantID, outer: outer}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j.ctx, j.cancel = &leaseContext{inner, j, cancel}, cancel
	// When both happen at once, Err decides which end was first.
	j.unlink = context.AfterFunc(outer.ctx, func() { _ = j.ctx.Err() })
	return j
}

// root returns the lease that holds the grant: l itself unless it has joined another one.
func (l *Lease) root() *Lease {
	if l.outer != nil {
		return l.outer
	}
	return l
}

// errOuterReleased ends the leases that have joined a lease which is released.
var errOuterReleased = errs.Errorf("%w by the holder that was joined", ErrReleased)

// joinedErr is Err of a joined lease. The first end that it sees stays.
func (l *Lease) joinedErr() error {
	outer := l.outer.Err()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil && outer != nil {
		if l.ended = outer; outer == ErrReleased { //nolint:errorlint // not a loss, and not Close
			l.ended = errOuterReleased
		}
	}
	return l.ended
}

// leave is Release of a joined lease.
func (l *Lease) leave() error {
	outer := l.outer.Err() // a loss that came before counts
	l.mu.Lock()
	if l.ended == nil && outer == nil {
		l.ended = ErrReleased
	}
	l.mu.Unlock()
	err := l.Err()
	l.unlink()
	l.cancel(err)           // not under mu: it calls into contexts derived by others
	if err == ErrReleased { //nolint:errorlint // by this lease's own Release
		return nil
	}
	return err
}

// HeldError is the error of an acquire whose own context carries the lock that it asks for. Waiting
// for it would never end, and trying again does not help. errors.Is finds ErrHeldByCaller, and not
// ErrNotAcquired: the mistake is in the program.
type HeldError struct {
	Name   string
	Token  fencing.Token // of the grant that ctx carries
	Holder string        // of that grant

	permits int // of a semaphore: how many of them ctx carries
}

func (e *HeldError) Error() string {
	if e.permits > 0 {
		return fmt.Sprintf("pglock: acquire %q: the caller's context holds %d of its permits: it would wait for itself", e.Name, e.permits)
	}
	return fmt.Sprintf("pglock: acquire %q: the caller's context holds this lock (token %d): use WithJoin to join its lease, or another context",
		e.Name, e.Token)
}

// Unwrap makes errors.Is find ErrHeldByCaller.
func (e *HeldError) Unwrap() error { return ErrHeldByCaller }
