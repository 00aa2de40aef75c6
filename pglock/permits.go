package pglock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/observe"
)

// errUpgraded is the end of a reader's lease that TryUpgrade has made a writer's.
var errUpgraded = errs.Errorf("%w: upgraded to the writer", ErrReleased)

// Downgrade turns the lease of a writer into that of a reader, without a moment in which the lock
// is free. Token, deadline and Context stay, and waiting readers are woken. A guarded transaction
// that began before keeps others out until it ends. Bind fails from now on, while Guard works.
//
// On the lease of a reader, Downgrade does nothing. On one of another kind of lock it returns a
// *KindError, and on one of several names an error that wraps ErrKind. If the lease has ended, it
// returns the error of Err. After ErrUnavailable and the end of ctx, the grant may be a reader's,
// so call Downgrade again.
func (l *Lease) Downgrade(ctx context.Context) error {
	if err := l.checkRWLock("downgrade"); err != nil {
		return err
	}
	return l.keep(ctx, "downgrade", 1)
}

// KeepPermits releases the permits of a semaphore that the lease has beyond n, 1 or more, for work
// whose last part needs less, and wakes the waiters that fit. As after Downgrade, Token, deadline
// and Context stay and Guard works, but a lease that had all permits can't Bind any more, and its
// guarded transactions keep others out until they end.
//
// If the lease has n permits or less, KeepPermits does nothing. The errors, and the remedy after
// ErrUnavailable, are those of Downgrade.
func (l *Lease) KeepPermits(ctx context.Context, n int) error {
	switch capacity := l.cfg.permits.Capacity; {
	case n < 1:
		return invalidOption("keep %d permits of %q: too few: must be at least 1", n, l.fence.Name)
	case l.several():
		return l.errSeveral("release permits of")
	case capacity == 0 || capacity == allPermits:
		return &KindError{Name: l.fence.Name, Wanted: anySemaphore, Found: capacity}
	}
	return l.keep(ctx, "release permits of", n)
}

// keep releases all but n of the lease's permits of its only name.
func (l *Lease) keep(ctx context.Context, op string, n int) error {
	if err := l.beginChange(); err != nil {
		return err
	}
	c := l.client
	defer c.endCall()
	if l.permits().Weight <= n {
		return nil
	}
	done := false
	err := c.retryChange(ctx, func(ctx context.Context) (err error) {
		done, err = c.store.KeepPermits(ctx, l.fence, n)
		return err
	})
	switch {
	case err != nil:
		return c.explainIn(ctx, fmt.Sprintf("%s %q", op, l.fence.Name), err)
	case !done:
		return l.lose(l.fence.Name, "its grant ended on the server, or another holder has the lock")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held.Weight = min(l.held.Weight, n)
	return nil
}

// TryUpgrade makes the holder of a reader's lease the writer, if there is no other reader. It does
// not wait, because two readers that wait for each other would wait forever. It overtakes waiting
// writers, which could not be granted the lock before this reader ends anyway.
//
// On success it returns a new lease with a new token, the options of the old one, and the values of
// ctx in its Context. The old lease is released, and the lock is not free in between.
//
// If there is another reader, or a guarded transaction of this one is in progress, the error is a
// *BusyError, and the lease is held as before. On the lease of a writer it is a *HeldError, and
// otherwise the errors are those of Downgrade. If the answer to the upgrade was lost, or came too
// late to trust its grant, the lease is lost.
func (l *Lease) TryUpgrade(ctx context.Context) (*Lease, error) {
	began := time.Now()
	if err := l.checkRWLock("upgrade"); err != nil {
		return nil, err
	}
	if err := l.beginChange(); err != nil {
		return nil, err
	}
	c := l.client
	defer c.endCall()
	// Until the answer is known, l is not ended by a renewal that does not find the reader's grant,
	// nor by another upgrade, which would not find it either.
	if err := l.beginUpgrade(ctx); err != nil {
		return nil, err
	}
	defer l.endUpgrade()
	if !l.permits().Shared() {
		return nil, &HeldError{Name: l.fence.Name, Token: l.fence.Token, Holder: l.cfg.holder}
	}
	cfg := l.cfg.forLock(Lock{permits: leasetable.Permits{Capacity: allPermits, Weight: allPermits}})
	r := cfg.request(l.fence.Name, newRequestID())
	g, err := l.sendUpgrade(ctx, r)
	if err != nil {
		return nil, err
	}
	writer := c.startLease(ctx, cfg, startedGrant{fence: fencing.Fence{Schema: l.fence.Schema, Name: r.Name, Token: g.Token}, id: r.ID, sent: g.Sent, remaining: g.Remaining, granted: began})
	ended := l.end(errUpgraded) // not left to Close, because a revocation lets others in
	if ended {
		c.registry.remove(l)
		l.revokeLost()
	}
	if writer == nil {
		if ended {
			c.events.releaseEnds(l, began, observe.ReleaseEvent{})
		}
		c.revoke(r, 1)
		return nil, ErrClosed
	}
	c.events.upgraded(ctx, l, writer, began)
	return writer, nil
}

// sendUpgrade turns the reader's grant into that of the writer r.
func (l *Lease) sendUpgrade(ctx context.Context, r *leasetable.Request) (g leasetable.Grant, err error) {
	c, op, uncertain := l.client, fmt.Sprintf("upgrade %q", r.Name), false // whether an answer was lost
	err = c.retryChange(ctx, func(ctx context.Context) (err error) {
		g, err = c.store.Upgrade(ctx, l.fence.Token, r)
		uncertain = uncertain || link.MaybeApplied(err)
		if link.RowLocked(err) { // many others acquire and release the lock
			g, err = leasetable.Grant{Outcome: leasetable.Busy}, nil
		}
		return err
	})
	late := err == nil && g.Outcome == leasetable.Granted && !time.Now().Before(l.cfg.deadline(g.Sent, g.Remaining, l.cfg.ttl))
	switch {
	case late, uncertain && (err != nil || g.Outcome == leasetable.Busy):
		// The reader's grant may have ended already. Its lease must end here before the writer's
		// grant is revoked, which lets others in.
		lost := l.lose(l.fence.Name, "the answer to its upgrade was lost, or too late")
		l.releaseLost()           // the reader's grant would block writers until it expires
		if l.cfg.lockDelay == 0 { // otherwise it expires: see releaseLost
			c.revoke(r, 1)
		}
		return g, cmp.Or(c.explainIn(ctx, op, err), lost)
	case err != nil:
		return g, c.explainIn(ctx, op, err)
	case g.Outcome == leasetable.Busy:
		return g, &BusyError{Name: r.Name, Holder: g.Holder, Token: g.Token, Remaining: g.Remaining, ThisClient: len(c.registry.withToken(g.Token)) > 0}
	case g.Outcome != leasetable.Granted:
		defer l.releaseLost() // a failover may have lost the downgrade, and the writer's grant is still there
		return g, l.lose(l.fence.Name, "its grant ended on the server")
	}
	return g, nil
}

// errSeveral is the error of an operation on one name for a lease of several.
func (l *Lease) errSeveral(op string) error {
	return errs.Errorf("pglock: %s %q: %w: the lease has several names: acquire this one by itself", op, l.fence.Name, ErrKind)
}

// checkRWLock returns an error unless the lease is one of a readers-writer lock.
func (l *Lease) checkRWLock(op string) error {
	if l.several() {
		return l.errSeveral(op)
	}
	if found := l.cfg.permits.Capacity; found != allPermits {
		return &KindError{Name: l.fence.Name, Wanted: allPermits, Found: found}
	}
	return nil
}

// beginChange begins a call for a lease that is held, and endCall must follow if it succeeds.
func (l *Lease) beginChange() error {
	if err := l.Err(); err != nil {
		return err
	}
	return l.client.beginCall()
}

// retryChange repeats op until it succeeds, fails permanently, or ctx or timing.StatementBound
// ends.
func (c *Client) retryChange(ctx context.Context, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	return retry(ctx, c.closing, op)
}

// permits returns the permits that the lease has, which Downgrade and KeepPermits change.
func (l *Lease) permits() leasetable.Permits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// beginUpgrade waits until no other call upgrades l, and returns the reason of l's end, if it has
// ended. If it succeeds, endUpgrade must follow.
func (l *Lease) beginUpgrade(ctx context.Context) error {
	for {
		if err := l.Err(); err != nil {
			return err
		}
		l.mu.Lock()
		other := l.upgrading
		if other == nil {
			l.upgrading = make(chan struct{})
		}
		l.mu.Unlock()
		if other == nil {
			return nil
		}
		select { // if both are ready, the loop checks the lease first
		case <-other:
		case <-ctx.Done():
			return errs.Errorf("pglock: upgrade %q: %w", l.fence.Name, endOf(ctx))
		}
	}
}

func (l *Lease) endUpgrade() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.upgrading)
	l.upgrading = nil
}

func (l *Lease) isUpgrading() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.upgrading != nil
}

// Resize changes the number of permits of the semaphore of that name to n, 1 to MaxPermits, for all
// clients, and creates the semaphore if need be. Holders keep their permits, so if they have more
// than n, none are granted until enough are released. If n changes, a holder of all permits shares
// the semaphore, and its Bind fails.
//
// Calls with another n, also those that wait, fail with a *KindError from now on. So does Resize,
// without a change, if the name is not a semaphore's. After ErrUnavailable the change may have been
// made. A statement whose answer was lost may also arrive late, and then replaces the number of a
// Resize that came between, so check the number after an outage.
func (c *Client) Resize(ctx context.Context, name string, n int) error {
	if err := c.Semaphore(name, n).err; err != nil {
		return err
	}
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	var before int
	err := c.retryChange(ctx, func(ctx context.Context) (err error) {
		before, err = c.store.Resize(ctx, name, n)
		return err
	})
	switch {
	case err != nil:
		return c.explainIn(ctx, fmt.Sprintf("resize %q", name), err)
	case before == -1:
		return &KindError{Name: name, Wanted: n}
	case before == -2:
		return &KindError{Name: name, Wanted: n, Found: allPermits}
	}
	return nil
}
