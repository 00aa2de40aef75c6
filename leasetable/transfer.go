package leasetable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// transfer is a release that grants the lock to a waiter.
type transfer struct {
	holder string         // of the waiter; empty: the first one
	result store.Transfer // set before the release call is done
}

// Transfer ends the lease and grants the lock to the waiter with that holder's name, even if others
// have waited longer. With an empty name it is the first waiter in the queue. The waiter's call of
// Acquire then returns a lease with a new token. Stop the protected work first: the Context is done
// before the lock is granted to the waiter.
//
// Of each client, only the first of its callers that wait for a name is known to others: see
// LockInfo.Waiters.
//
// Transfer waits until the waiter has taken the lock over. If no such waiter is in the queue, the
// error wraps ErrNoWaiter, and the lease is still held: see Err. If the waiter leaves meanwhile, or
// does not respond within 1.5 s, or a guarded transaction of this lease is still open, the error wraps
// ErrNoWaiter as well, but the lease has ended: the lock is free, or granted to the next waiter.
//
// If the lease has ended before, the error wraps ErrLost or ErrReleased. If the server does not
// answer, it wraps ErrUnavailable. If ctx ends first, it wraps the error and cause of ctx, and the
// transfer goes on. Release after a Transfer that has ended the lease does nothing. A lease that has
// joined another one, an unlocked lease, and a lease of permits or of several names can't be transferred.
func (l *Lease) Transfer(ctx context.Context, holder string) error {
	doing := fmt.Sprintf("transfer %q", l.fence.Name)
	if holder != "" {
		doing += fmt.Sprintf(" to %.64q", holder)
	}
	if err := l.checkTransfer(ctx, holder, doing); err != nil {
		return err
	}
	ctx, stop := beyondRelease(ctx)
	defer stop()
	to := &transfer{holder: holder}
	call, f, err := l.startRelease(to)
	switch {
	case err != nil:
		return err
	case f == nil: // another call has ended it meanwhile
		return l.Err()
	}
	go f.retry()
	// If both are ready, either answer is right: the transfer goes on without its caller.
	select {
	case <-call.done:
	case <-ctx.Done():
		return errs.Errorf("pglock: %s: not done yet: %w", doing, endOf(ctx))
	}
	switch {
	case call.err != nil:
		return call.err
	case !to.result.Done:
		return errs.Errorf("pglock: %s: %w any more: the lock was released instead", doing, ErrNoWaiter)
	}
	return l.awaitTakeover(ctx, to.result, doing)
}

// beyondRelease returns a context that ends with ctx, unless ctx ends because a lease is released: the
// work of a lease may call with the lease's own context.
func beyondRelease(ctx context.Context) (context.Context, func()) {
	beyond, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, ErrReleased) {
			cancel(cause)
		}
	})
	return beyond, func() { stop(); cancel(nil) }
}

// checkTransfer returns an error if the lease can't be transferred to that holder. It has no effect
// on the lease.
func (l *Lease) checkTransfer(ctx context.Context, holder, doing string) error {
	switch {
	case l.Err() != nil:
		return l.Err()
	case len(holder) > maxHolder || !storable(holder):
		return invalidOption("%s: holder: must be at most %d bytes of UTF-8 without NUL", doing, maxHolder)
	case l.Unlocked():
		return errs.Errorf("pglock: %s: %w", doing, errUnlocked)
	case l.outer != nil:
		return fmt.Errorf("pglock: %s: the lease has joined another one: transfer that one", doing)
	case l.several():
		return fmt.Errorf("pglock: %s: a lease of several names can't be transferred", doing)
	case l.cfg.permits.Any():
		return errs.Errorf("pglock: %s: %w: only a lock with one holder can be transferred", doing, fencing.ErrShared)
	}
	k, err := l.client.Get(ctx, l.fence.Name)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(k.Waiters, func(w WaiterInfo) bool { return holder == "" || w.Holder == holder }) {
		return errs.Errorf("pglock: %s: %w: the lease is still held", doing, ErrNoWaiter)
	}
	return nil
}

// transferLock transfers the lock of f, and reports whether that was done; otherwise the lock must be
// released. If the answer is lost, the row tells.
func (f *releaseOp) transferLock(ctx context.Context) bool {
	c, l, to := f.lease.client, f.lease, f.transfer
	err := c.retry(ctx, nil, func(ctx context.Context) (err error) {
		to.result, err = c.store.Transfer(ctx, l.fence, to.holder, timing.HeadGrace)
		f.uncertain = f.uncertain || store.MaybeApplied(err)
		return err
	})
	f.notified = to.result.Notified
	return err == nil && to.result.Done
}

// awaitTakeover waits until the waiter has confirmed its grant. It reads the row: the waiter is in
// another process, usually.
func (l *Lease) awaitTakeover(ctx context.Context, t store.Transfer, doing string) error {
	const late = timing.HeadGrace + timing.StatementBound
	pause := newPause()
	for began := time.Now(); time.Since(began) < late; {
		k, err := l.client.Get(ctx, l.fence.Name)
		switch {
		case err != nil && !errors.Is(err, ErrUnavailable):
			return err
		case err != nil: // it may be back in time
		case k.Token == t.Token && k.Version != t.Version:
			return nil
		case k.Token != t.Token && (time.Since(began) < timing.HeadGrace || k.Last.End != EndExpired):
			return nil // the waiter has released it since
		case k.Token != t.Token, k.Remaining == 0:
			return errs.Errorf("pglock: %s: %w: it did not take the lock over within %v", doing, ErrNoWaiter, timing.HeadGrace)
		}
		select { // when both are ready, one more read is harmless
		case <-time.After(pause.Next()):
		case <-ctx.Done():
		}
	}
	return errs.Errorf("pglock: %s: %w", doing, ErrUnavailable)
}
