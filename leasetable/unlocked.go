package leasetable

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// WithFailOpen lets the work run without the lock while the database is away: Acquire, TryAcquire
// and the calls of package pglock that use them return an unlocked lease instead of ErrUnavailable.
// It does not exclude others. Use it for work that is better done twice than not at all.
//
// The database is away when it can't be reached or does not answer: for 30 s in Acquire, for two
// attempts in TryAcquire (10 s at most), or when the time of WithWait, a second or more, is over. The
// last attempt counts: a call that has seen the lock held, and lost the database before the time of
// WithWait was over, runs unlocked as well. Every other failure is returned as without the option: a held lock,
// an invalid option, missing tables or rights, a rejected role or password, a grant that arrives
// too late, the end of ctx, and a closed client. Open fails if the database is away.
//
// An unlocked lease has no grant. [Lease.Unlocked] returns true, Token 0, and Deadline the zero
// time. Its Context is done when it is released or the client closes, and not before: nothing can be
// lost. Release does nothing else. Guard and Bind return an error that wraps fencing.ErrStale, and
// protected tables refuse the writes. Extend and HandOver return an error that wraps ErrNotAcquired.
// The rules of the other options have no effect. The client does not acquire the lock later.
//
// The client logs each such call at Warn. WithFailOpen is an option of a call, not of Open. Default:
// no work without the lock.
func WithFailOpen() LeaseOption { return failOpen{} }

type failOpen struct{}

func (failOpen) applyLease(c *leaseConfig) error {
	c.failOpen = true
	return nil
}

func (failOpen) applyClient(*clientConfig) error {
	return invalidOption("WithFailOpen: not allowed for all leases of a client: must be an option of each call")
}

// errUnlocked is the error of an operation that needs a grant.
var errUnlocked = errs.Errorf("%w: the lease is unlocked, because the database was away (WithFailOpen)", ErrNotAcquired)

// databaseAway reports whether a failed acquisition may go on without the lock.
func (a *acquisition) databaseAway(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, errLateGrant) {
		return false
	}
	var wait *WaitError
	switch {
	case !errors.As(err, &wait):
		return store.Away(err)
	case wait.Cause != ErrTimeout: //nolint:errorlint // the server's error may wrap it
		return store.Away(wait.Cause)
	}
	// The time of WithWait is over. The last attempt failed, or the first one has no answer yet. In
	// less than a second, there may have been one attempt, on a connection that died long ago.
	silent := wait.Last == nil && a.facts.attempts > 0 && !a.answered
	return time.Since(a.began) >= timing.FirstAttempt && (silent || store.Away(wait.Last))
}

// unlockedLease returns a lease without a grant, or nil if the client was closed since the call
// began.
func (c *Client) unlockedLease(ctx context.Context, a *acquisition, why error) *Lease {
	l := &Lease{client: c, fence: fencing.Fence{Schema: c.cfg.schema, Name: a.name}, cfg: a.cfg, since: time.Now()}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	l.ctx, l.cancel = &leaseContext{inner, l, cancel}, cancel
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		cancel(errReleasedByClose)
		return nil
	}
	c.leases[l] = struct{}{}
	c.cfg.logger.Warn("pglock: the database is away: the work runs without the lock", "name", a.name, "error", why)
	return l
}

// Unlocked reports whether the lease has no grant: see WithFailOpen.
func (l *Lease) Unlocked() bool { return l.fence.Token == 0 }

// releaseUnlocked is Release of an unlocked lease.
func (l *Lease) releaseUnlocked() {
	l.end(ErrReleased)
	l.client.untrack(l)
}
