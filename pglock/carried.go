package pglock

import (
	"context"
	"fmt"
	"slices"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// FromContext returns the innermost lease of the lock name that ctx carries, and reports false if
// ctx carries none. The lease may have ended.
func FromContext(ctx context.Context, name string) (*Lease, bool) {
	l, ok := ctx.Value(&leaseQuery{name: name}).(*Lease)
	return l, ok
}

// Require returns the innermost lease of the lock name that ctx carries and that has not ended, for
// functions that must run under a lock which their callers take. Without such a lease the error
// wraps ErrNotAcquired, or is that of the lease that has ended. The lease may be that of a reader,
// or of one permit, and of any client: a program that locks in several schemas or databases checks
// its Fence. Require does not contact the database.
func Require(ctx context.Context, name string) (*Lease, error) {
	if l, ok := ctx.Value(&leaseQuery{name: name, held: true}).(*Lease); ok {
		return l, nil
	}
	if l, ok := FromContext(ctx, name); ok {
		return nil, l.Err()
	}
	return nil, errs.Errorf("pglock: require %q: %w: the context carries no lease of it: pass the context that Do or a lease has made", name, ErrNotAcquired)
}

// anyLease is the key of the innermost lease that a context carries.
type anyLease struct{}

// leaseQuery is the key of a lease that a context carries, which matches by its fields.
type leaseQuery struct {
	name string
	held bool    // skip leases that have ended
	of   *Client // nil: of any client
}

func (q *leaseQuery) matches(l *Lease) bool {
	return l.hasName(q.name) && (q.of == nil || q.of == l.client) && (!q.held || l.Err() == nil)
}

// allLeases is a key that collects the leases that a context carries, the innermost one first.
type allLeases []*Lease

// carriedLeases returns the leases that ctx carries and that have not ended.
func carriedLeases(ctx context.Context) []*Lease {
	if ctx.Value(anyLease{}) == nil {
		return nil
	}
	var all allLeases // on the heap
	_ = ctx.Value(&all)
	return slices.DeleteFunc(all, func(l *Lease) bool { return l.Err() != nil })
}

// Value returns the lease if key matches it, and otherwise the parent's value.
func (c *leaseContext) Value(key any) any {
	switch k := key.(type) {
	case anyLease:
		return c.lease
	case *leaseQuery:
		if k.matches(c.lease) {
			return c.lease
		}
	case *allLeases:
		if !slices.Contains(*k, c.lease) {
			*k = append(*k, c.lease)
		}
	}
	return c.Context.Value(key)
}

// carriedBy returns the held lease of this lock that ctx carries, or nil. err is what a call that
// may not join that lease returns, a *HeldError or a *KindError, and it can be set although the
// lease is nil.
func (l Lock) carriedBy(ctx context.Context) (*Lease, error) {
	if ctx.Value(anyLease{}) == nil {
		return nil, nil //nolint:nilnil // most calls have no lease
	}
	if l.names == nil && l.isSemaphore() {
		return nil, l.checkPermits(ctx)
	}
	for i, name := range l.allNames() {
		held := l.heldIn(ctx, name)
		if held == nil {
			continue
		}
		if has, _ := held.permitsOf(name); has.Capacity != l.permitsAt(i).Capacity {
			return nil, &KindError{Name: name, Wanted: l.permitsAt(i).Capacity, Found: has.Capacity}
		}
		err := &HeldError{Name: name, Token: held.Token(), Holder: held.Holder()}
		if l.isSemaphore() || !held.covers(l) {
			return nil, err
		}
		return held, err
	}
	return nil, nil //nolint:nilnil // none
}

// covers reports whether the lease has all that the lock needs, as a reader's lease is not a
// writer's.
func (l *Lease) covers(wanted Lock) bool {
	for i, name := range wanted.allNames() {
		has, ok := l.permitsOf(name)
		if want := wanted.permitsAt(i); !ok || has.Capacity != want.Capacity || has.Weight < want.Weight {
			return false
		}
	}
	return true
}

// isSemaphore reports whether the lock has permits of a semaphore.
func (l Lock) isSemaphore() bool {
	for i := range l.allNames() {
		if p := l.permitsAt(i); p.Any() && p.Capacity != allPermits {
			return true
		}
	}
	return false
}

// checkPermits returns a *HeldError if ctx carries so many permits of the semaphore that the others
// would never be enough.
func (l Lock) checkPermits(ctx context.Context) error {
	sum := 0
	var last *Lease
	for _, held := range carriedLeases(ctx) {
		if p, ok := held.permitsOf(l.name); ok && held.client == l.client {
			sum, last = sum+p.Weight, held
		}
	}
	if last == nil || sum+l.permits.Weight <= l.permits.Capacity {
		return nil
	}
	return &HeldError{Name: l.name, Token: last.Token(), Holder: last.Holder(), permits: sum}
}

// heldIn returns the held lease of the lock name that ctx carries, or nil.
//
// The lease of another client is of the same lock only if both clients use one database, which the
// row shows because it has the request of its grant, a random UUID. If the server does not answer,
// heldIn returns nil, and the acquire that follows reports the failure.
func (l Lock) heldIn(ctx context.Context, name string) *Lease {
	c := l.client
	held, ok := ctx.Value(&leaseQuery{name: name, held: true}).(*Lease)
	if !ok {
		return nil
	}
	if own, ok := ctx.Value(&leaseQuery{name: name, held: true, of: c}).(*Lease); ok {
		return own
	}
	if held.fence.Schema != c.cfg.schema || held.grantID == "" || c.beginCall() != nil {
		return nil
	}
	defer c.endCall()
	if granted, err := c.store.GrantedTo(ctx, name, held.grantID); err != nil || !granted {
		return nil
	}
	return held
}

// HeldError is the error of an acquire whose own context carries the lock. It wraps ErrHeldByCaller
// and not ErrNotAcquired: only a change of the program helps.
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
	return fmt.Sprintf("pglock: acquire %q: the caller's context holds this lock (token %d): run under it by Do with WithJoin, or acquire under another context",
		e.Name, e.Token)
}

func (e *HeldError) Unwrap() error { return ErrHeldByCaller }
