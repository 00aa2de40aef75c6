package leasetable

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
)

// MaxNames is the largest number of names that AcquireAll acquires together.
const MaxNames = 128

// AcquireAll waits until the locks of all names are granted to this call together, and returns one
// lease for all of them. Nothing is held until all are granted. The order of names is of no
// importance. A single name makes AcquireAll the same as Acquire.
//
// A waiting call has one ticket, which stands in the queue of each name. So calls with overlapping
// names can't deadlock, none of them starves, and each name is granted first come, first served. The
// cost is idle time: a name that is free is not granted to later callers while the call at the head
// of its queue waits for another name. If the process of a waiting call dies, its free names are idle
// for up to 3 s longer. While it waits, a call costs a row of lock_waiters for each name. Calls of
// one client for the same names share them.
//
// The lease has one token, Context, Guard and Release. In the database each name is held and renewed
// like any other lock, with that token. If one of them is lost, the lease is lost: the *LostError has
// the lost name. The other names stay held until Release or the end of their TTL, since the work may
// need a moment to stop. [Lease.Names] and [Lease.Fences] return the parts. A lease of several names
// can't be handed over.
//
// Names that are empty, or invalid, or given twice, and more than MaxNames of them, are refused with
// ErrInvalidName or ErrInvalidOption. A name of a semaphore or a readers-writer lock is refused with
// a *KindError. If ctx carries a held lease of one of the names, AcquireAll returns a *HeldError:
// waiting for the others while that name is held could deadlock. With WithJoin it joins that lease
// if the lease has all the names. Everything else is as for Acquire; a *BusyError has the name that
// is in the way.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...LeaseOption) (*Lease, error) {
	return c.acquireAll(ctx, names, opts, (*acquisition).wait)
}

// TryAcquireAll acquires the locks of all names if they are free and nobody waits for one of them.
// Otherwise it returns a *BusyError (errors.Is ErrNotAcquired) for the name in the way, of several
// the one whose lease lasts longest. It has acquired nothing then. Everything else is as for
// AcquireAll and TryAcquire.
func (c *Client) TryAcquireAll(ctx context.Context, names []string, opts ...LeaseOption) (*Lease, error) {
	return c.acquireAll(ctx, names, opts, (*acquisition).once)
}

func (c *Client) acquireAll(ctx context.Context, names []string, opts []LeaseOption, how func(*acquisition, context.Context) (store.Grant, error)) (*Lease, error) {
	all, err := checkNames(names)
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		return c.acquire(ctx, all[0], opts, how)
	}
	opts, err = c.definedAll(ctx, all, opts)
	if err != nil {
		return nil, err
	}
	cfg, err := c.cfg.leaseWith(opts)
	if err != nil {
		return nil, err
	}
	cfg = cfg.forLocks(all, store.Permits{})
	for _, name := range all {
		held := c.heldIn(ctx, name)
		if held == nil {
			continue
		}
		if cfg.join && held.has(all) {
			if ctx.Err() != nil {
				return nil, &WaitError{Name: displayNames(all), Cause: endOf(ctx)}
			}
			return held.join(ctx), nil
		}
		return nil, &HeldError{Name: name, Token: held.Token(), Holder: held.Holder()}
	}
	return c.acquireAs(ctx, displayNames(all), cfg, how)
}

// definedAll is defined for several names. Of several TTLs the shortest one counts.
func (c *Client) definedAll(ctx context.Context, names []string, opts []LeaseOption) ([]LeaseOption, error) {
	var shortest time.Duration
	for _, name := range names {
		byName, err := c.defined(ctx, name, nil)
		if err != nil {
			return nil, err
		}
		var def leaseConfig
		if err := def.apply(byName); err != nil {
			return nil, err
		}
		if def.ttl > 0 && (shortest == 0 || def.ttl < shortest) {
			shortest = def.ttl
		}
	}
	if shortest == 0 {
		return opts, nil
	}
	return append([]LeaseOption{WithTTL(shortest)}, opts...), nil
}

// checkNames returns the names in the order of their bytes, which is that of COLLATE "C".
func checkNames(names []string) ([]string, error) {
	switch {
	case len(names) == 0:
		return nil, invalidOption("acquire all: no names: must be at least one")
	case len(names) > MaxNames:
		return nil, invalidOption("acquire all: %d names: too many: must be at most %d", len(names), MaxNames)
	}
	all := slices.Sorted(slices.Values(names))
	for i, name := range all {
		if err := checkName(name); err != nil {
			return nil, err
		}
		if i > 0 && name == all[i-1] {
			return nil, invalidOption("acquire all: the name %q is given twice: must be distinct", name)
		}
	}
	return all, nil
}

// displayNames returns names as one text for people.
func displayNames(names []string) string {
	const most = 4
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Names returns the names that the lease holds, sorted: one, or those of AcquireAll.
func (l *Lease) Names() []string {
	if l.cfg.names == nil {
		return []string{l.fence.Name}
	}
	return slices.Clone(l.cfg.names)
}

// Fences returns the fence of each name that the lease holds, in the order of Names. All have the
// same token.
func (l *Lease) Fences() []fencing.Fence {
	fences := make([]fencing.Fence, 0, 1)
	for _, name := range l.Names() {
		fences = append(fences, fencing.Fence{Schema: l.fence.Schema, Name: name, Token: l.fence.Token})
	}
	return fences
}

// several reports whether the lease has several names. Then the names are leases of their own, its
// parts, which are renewed and released like any other:
//
//	a part is lost      ──▶ the lease is lost, and the other parts are not renewed any more
//	the lease is released ──▶ all parts are released
//
// A joined or an unlocked lease of several names has no parts of its own.
func (l *Lease) several() bool { return l.cfg.names != nil }

// has reports whether the lease has all of the names.
func (l *Lease) has(names []string) bool {
	for _, name := range names {
		if !l.hasName(name) {
			return false
		}
	}
	return true
}

func (l *Lease) hasName(name string) bool {
	if l.cfg.names == nil {
		return l.fence.Name == name
	}
	_, found := slices.BinarySearch(l.cfg.names, name)
	return found
}

// startAll makes the lease of a grant of several names. It returns nil if the client was closed since
// the call began.
func (c *Client) startAll(ctx context.Context, cfg *leaseConfig, g startedGrant) *Lease {
	all := &Lease{client: c, fence: g.fence, cfg: cfg, grantID: g.id, repeated: g.repeated, since: g.granted}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	all.ctx, all.cancel = &leaseContext{inner, all, cancel}, cancel
	cfg = cfg.forLocks(nil, store.Permits{})
	for _, name := range all.cfg.names {
		g.fence.Name = name
		part := c.startLease(ctx, cfg, g)
		if part == nil {
			for _, p := range all.parts {
				p.end(errReleasedByClose)
			}
			return nil
		}
		all.parts = append(all.parts, part)
	}
	// Requests that have come before count now.
	for _, p := range all.parts {
		p.mu.Lock()
		p.all = all
		requested, reason := p.request.made, p.request.reason
		p.mu.Unlock()
		if requested {
			all.requestRelease(reason)
		}
	}
	for _, p := range all.parts {
		context.AfterFunc(p.ctx, all.partEnded)
	}
	return all
}

// partEnded ends the lease when a part of it has ended. The other parts stay held, but are not renewed
// any more.
func (l *Lease) partEnded() {
	_ = l.ctx.Err() // cancels the context
	for _, p := range l.parts {
		l.client.renew.remove(p)
	}
}

// severalErr is Err of a lease with parts. The first end that it sees stays.
func (l *Lease) severalErr() error {
	var first error
	for _, p := range l.parts {
		if first = p.Err(); first != nil {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = first
	}
	return l.ended
}

// severalDeadline is Deadline of a lease with parts: the earliest one.
func (l *Lease) severalDeadline() time.Time {
	deadline := l.parts[0].Deadline()
	for _, p := range l.parts[1:] {
		if d := p.Deadline(); d.Before(deadline) {
			deadline = d
		}
	}
	return deadline
}

// releaseParts is Release of a lease with parts. It waits until givenUp, whose cause is in ctx. The
// context ends before the first name is free. A loss of one part is reported after the others are
// released.
func (l *Lease) releaseParts(ctx context.Context, givenUp <-chan struct{}) error {
	_ = l.Err() // a loss that came before counts
	l.mu.Lock()
	if l.ended == nil {
		l.ended = ErrReleased
	}
	ended := l.ended
	l.mu.Unlock()
	l.cancel(ended) // not under mu: it calls into contexts derived by others

	var failed error
	var calls []*releaseCall
	var ops []*releaseOp
	for _, p := range l.parts {
		call, op, err := p.startRelease(nil)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		calls = append(calls, call)
		if op != nil {
			ops = append(ops, op)
		}
	}
	if len(ops) > 0 {
		l.client.releases.SubmitAll(ops)
	}
	for _, call := range calls {
		// If both are ready, either answer is right: the release goes on without its caller.
		select {
		case <-call.done:
			failed = cmp.Or(failed, call.err)
		case <-givenUp:
			return errs.Errorf("pglock: release %q: not done yet: %w", l.fence.Name, context.Cause(ctx))
		}
	}
	return failed
}
