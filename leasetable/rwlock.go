package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// allPermits is the number of permits of a readers–writer lock.
const allPermits = 1 << 30

// RWLock is a lock that many readers or one writer hold. It is safe for concurrent use. It holds no
// resources.
//
// Each grant is a Lease with a token of its own. A reader's Guard lets other readers' guards pass
// and keeps writers out. A reader's Bind is refused with fencing.ErrShared.
//
// Waiters are served first come, first served across processes: readers that come after a waiting
// writer wait for it.
//
// A call whose ctx carries a lease of this lock fails with a *HeldError, as for any lock, since it
// could wait for itself. With WithJoin it joins that lease, unless a writer would join a reader.
type RWLock struct {
	client *Client
	name   string
}

// RWLock returns the readers–writer lock with that name. It does not contact the database. If the
// name is used for something else, acquiring fails with a *KindError (errors.Is ErrKind).
func (c *Client) RWLock(name string) (*RWLock, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &RWLock{c, name}, nil
}

// Lock waits until the caller is the only holder. Everything else is as for Client.Acquire.
func (l *RWLock) Lock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, allPermits, opts, (*acquisition).wait)
}

// TryLock is Lock without waiting, as Client.TryAcquire.
func (l *RWLock) TryLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, allPermits, opts, (*acquisition).once)
}

// RLock waits until no writer holds the lock, or has waited for it longer. Everything else is as
// for Client.Acquire.
func (l *RWLock) RLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, 1, opts, (*acquisition).wait)
}

// TryRLock is RLock without waiting, as Client.TryAcquire. It fails if a writer waits.
func (l *RWLock) TryRLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, 1, opts, (*acquisition).once)
}

func (l *RWLock) acquire(ctx context.Context, weight int, opts []LeaseOption, how func(*acquisition, context.Context) (store.Grant, error)) (*Lease, error) {
	return l.client.acquirePermits(ctx, l.name, store.Permits{Capacity: allPermits, Weight: weight}, opts, how)
}

// errUpgraded ends the lease of a reader that TryUpgrade has made a writer.
var errUpgraded = errs.Errorf("%w: upgraded to the writer", ErrReleased)

// Downgrade turns the lease of a writer, from RWLock.Lock, into that of a reader. At no moment is the
// lock free. Token, deadline and Context stay, and the readers that wait are woken. A guarded
// transaction of the writer that has begun before keeps others out until it ends. Bind fails from now
// on, and Guard works as before.
//
// On the lease of a reader, Downgrade does nothing. On one of another kind of lock it returns a
// *KindError (errors.Is ErrKind), and on one that has joined another (WithJoin) an error that wraps
// ErrInvalidOption. If the lease has ended, the error wraps ErrLost or ErrReleased. If the server
// does not answer, it wraps ErrUnavailable; if ctx ends first, the error and cause of ctx. In these
// two cases the grant may be a reader's; call Downgrade again. ctx bounds the call.
func (l *Lease) Downgrade(ctx context.Context) error {
	doing := fmt.Sprintf("downgrade %q", l.fence.Name)
	if err := l.beginChange(doing); err != nil {
		return err
	}
	c := l.client
	defer c.endCall()
	if l.permits().Shared() {
		return nil
	}
	done := false
	err := c.retryChange(ctx, func(ctx context.Context) (err error) {
		done, err = c.store.Downgrade(ctx, l.fence)
		return err
	})
	switch {
	case err != nil:
		return c.explainIn(ctx, doing, err)
	case !done:
		return l.lose("its grant ended on the server, or another holder has the lock")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held.Weight = 1
	return nil
}

// TryUpgrade makes the holder of a reader's lease, from RWLock.RLock, the writer, if there is no
// other reader. It does not wait: two readers that wait for each other would wait forever. Writers
// that wait are overtaken, but could not be granted the lock before this reader ends anyway.
//
// On success it returns a new lease with a new token and the options of the old one. Its Context has
// the values of ctx. The old lease has ended: its Context is done, Err wraps ErrReleased, Release
// does nothing, and guards with its token fail. Between the two leases the lock is not free.
//
// If there is another reader, or a guarded transaction of this one is in progress, the error is a
// *BusyError (errors.Is ErrNotAcquired), and the lease is held as before. On the lease of a writer it
// is a *HeldError. Another call on the same lease waits for the first one; if that one succeeds, it
// returns an error that wraps ErrReleased. Otherwise the errors are those of Downgrade. If the answer to the upgrade was
// lost, so is the lease.
func (l *Lease) TryUpgrade(ctx context.Context) (*Lease, error) {
	doing := fmt.Sprintf("upgrade %q", l.fence.Name)
	began := time.Now()
	if err := l.beginChange(doing); err != nil {
		return nil, err
	}
	c := l.client
	defer c.endCall()
	// Until the answer is known, a renewal that does not find the reader's grant does not end l. Nor
	// does another upgrade, which would not find it either.
	if err := l.beginUpgrade(ctx); err != nil {
		return nil, err
	}
	defer l.endUpgrade()
	if !l.permits().Shared() {
		return nil, &HeldError{Name: l.fence.Name, Token: l.fence.Token, Holder: l.cfg.holder}
	}
	cfg := l.cfg.forLocks(nil, store.Permits{Capacity: allPermits, Weight: allPermits})
	r := &store.Request{
		Name: l.fence.Name, ID: newRequestID(), Holder: cfg.holder, Labels: cfg.labels, TTL: cfg.grantTTL(), Permits: cfg.permits,
	}
	var g store.Grant
	uncertain := false // an answer was lost
	err := c.retryChange(ctx, func(ctx context.Context) (err error) {
		g, err = c.store.Upgrade(ctx, l.fence.Token, r)
		uncertain = uncertain || store.MaybeApplied(err)
		if store.RowLocked(err) { // many others acquire and release the lock
			g, err = store.Grant{Outcome: store.Busy}, nil
		}
		return err
	})
	switch {
	case uncertain && (err != nil || g.Outcome == store.Busy):
		// The reader's grant may be gone already. It must end here before the writer's is revoked,
		// which lets others in.
		lost := l.lose("the answer to its upgrade was lost")
		c.revoke(r)
		if err == nil {
			return nil, lost
		}
		return nil, c.explainIn(ctx, doing, err)
	case err != nil:
		return nil, c.explainIn(ctx, doing, err)
	case g.Outcome == store.Busy:
		return nil, &BusyError{Name: r.Name, Holder: g.Holder, Token: g.Token, Remaining: g.Remaining, ThisClient: len(c.leasesOf(g.Token)) > 0}
	case g.Outcome != store.Granted:
		return nil, l.lose("its grant ended on the server")
	}
	fence := l.fence
	fence.Token = g.Token
	writer := c.startLease(ctx, cfg, startedGrant{fence: fence, id: r.ID, sent: g.Sent, remaining: g.Remaining, granted: g.Sent.Add(g.Remaining - r.TTL)})
	if writer == nil {
		c.revoke(r)
		return nil, ErrClosed
	}
	if l.end(errUpgraded) {
		c.untrack(l)
	}
	c.events.upgraded(ctx, l, writer, began)
	return writer, nil
}

// beginChange checks that the lease is one of a readers-writer lock and held, and begins a call. If
// it succeeds, endCall must follow.
func (l *Lease) beginChange(doing string) error {
	switch {
	case l.cfg.permits.Capacity != allPermits:
		return &KindError{Name: l.fence.Name, Wanted: allPermits, Found: l.cfg.permits.Capacity}
	case l.outer != nil:
		return invalidOption("%s: the lease has joined another one: its holder must do this", doing)
	case l.Unlocked():
		return errs.Errorf("pglock: %s: %w", doing, errUnlocked)
	}
	if err := l.Err(); err != nil {
		return err
	}
	return l.client.beginCall()
}

// retryChange repeats op until it succeeds, fails for good, or ctx or timing.StatementBound ends.
func (c *Client) retryChange(ctx context.Context, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	return c.retry(ctx, c.closing, op)
}

// permits returns the permits that the lease has. Downgrade changes them.
func (l *Lease) permits() store.Permits {
	l = l.root()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// beginUpgrade waits until no other call upgrades l, and returns why l has ended, if it has. If it
// succeeds, endUpgrade must follow.
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
		select { // when both are ready, the loop looks at the lease first
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
