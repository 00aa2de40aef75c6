package pglock

import (
	"context"
	"iter"

	"github.com/pglock/pglock-go/leasetable"
)

// LockInfo describes a lock that is held or was held. It is a [leasetable.LockInfo], with these
// fields, and a method Held, which reports whether the lock was held when its row was read:
//
//	Name       string
//	Token      Token             // of the last grant
//	Version    int64             // grows with every change of the row
//	Holder     string            // empty if the lock was released
//	Labels     map[string]string // of the last grant
//	AcquiredAt time.Time         // of the last grant, by the server's clock
//	HeldFor    time.Duration     // since AcquiredAt; 0 if the lock is free
//	Remaining  time.Duration     // until the grant expires unless it is renewed, or until the end of
//	                             // WithMinHold if Holder is empty; 0 if the lock is free
//
//	ReleaseRequested bool   // the holder is asked to release the lock: see Client.RequestRelease
//	ReleaseReason    string // why
//
//	Last    LastGrant    // the last grant that is over
//	Waiters []WaiterInfo // the clients that wait, in the order of the queue
//
//	Kind    Kind        // KindLock, KindSemaphore or KindRWLock; empty if the name has no row
//	Permits int         // the number of permits of a semaphore
//	Grants  []GrantInfo // of a semaphore or a readers-writer lock: the live grants
//
// The fields from Holder to ReleaseReason describe only a grant that has the whole lock. The method
// InUse returns the number of permits that are held.
type LockInfo = leasetable.LockInfo

// Kind is a kind of lock.
type Kind = leasetable.Kind

// Kinds of locks.
const (
	KindLock      = leasetable.KindLock // with one holder
	KindSemaphore = leasetable.KindSemaphore
	KindRWLock    = leasetable.KindRWLock
)

// GrantInfo describes a live grant of a semaphore or a readers-writer lock. It is a
// [leasetable.GrantInfo], with these fields:
//
//	Token      Token
//	Holder     string
//	Labels     map[string]string
//	Permits    int           // of a semaphore: how many of them the grant has
//	Exclusive  bool          // it is a writer's, or has all permits
//	AcquiredAt time.Time     // by the server's clock
//	HeldFor    time.Duration // since AcquiredAt
//	Remaining  time.Duration // until it expires unless renewed
//
//	ReleaseRequested bool   // the holder is asked to release the grant: see Client.RequestRelease
//	ReleaseReason    string // why
type GrantInfo = leasetable.GrantInfo

// LastGrant describes the last grant of a lock that is over, or is the zero value. It is a
// [leasetable.LastGrant], with these fields:
//
//	Holder  string
//	EndedAt time.Time // by the server's clock
//	End     End       // EndReleased, EndExpired, EndRevoked, or empty if no grant is over
//	Reason  string    // of a revocation
type LastGrant = leasetable.LastGrant

// End says how a grant has ended.
type End = leasetable.End

// Ends of a grant.
const (
	EndReleased = leasetable.EndReleased // by its holder
	EndExpired  = leasetable.EndExpired  // its holder has not renewed it
	EndRevoked  = leasetable.EndRevoked  // by Client.Revoke
)

// WaiterInfo describes a client that waits for a lock. It is a [leasetable.WaiterInfo], with these
// fields:
//
//	Holder string        // the name that it would hold the lock with
//	Ticket int64         // its place in the queue: smaller tickets are first
//	Waited time.Duration // so far
type WaiterInfo = leasetable.WaiterInfo

// LockFilter selects the locks that Client.Locks returns, by all of its fields that are set. It is a
// [leasetable.LockFilter], with these fields:
//
//	Held    bool              // held locks only
//	Prefix  string            // of the name
//	Pattern string            // of the whole name: * is any text, ? any character
//	Holder  string            // of the last grant, unless released
//	Labels  map[string]string // of the last grant, which may have more
type LockFilter = leasetable.LockFilter

// Locks returns the locks that match filter, in the order of their names. It reads them in steps,
// and holds no connection, transaction or snapshot between two steps: the number of locks and the
// duration of the caller's loop do not matter. Each lock is as it was when its step was read.
//
// An error ends the iteration. It wraps ErrInvalidOption, ErrUnavailable, ErrClosed, or the error
// and cause of ctx, which bounds the whole iteration.
func (c *Client) Locks(ctx context.Context, filter LockFilter) iter.Seq2[LockInfo, error] {
	return c.leases.Locks(ctx, filter)
}

// Watch returns the state of the lock of that name, and then its new state after each change of its
// holder or its labels: a grant, a release, a revocation, an expiry, Lease.SetLabels. Each state is the
// newest one, and never older than the one before. Holders that came and went during the caller's loop
// are left out.
//
// A release, a revocation, an expiry, new labels and a grant with WithAnnounce are seen within
// milliseconds where notifications arrive. Everything else is seen within a second. A lock that is not
// watched pays nothing.
//
// An error ends the iteration: it wraps ErrUnavailable after an outage of 30 s, ErrClosed, or the
// error and cause of ctx.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[LockInfo, error] {
	return c.leases.Watch(ctx, name)
}

// Revoke ends the grant of the lock with that token. The caller need not be its holder. Its guards fail at once, with
// ErrStale, and the lock is free for the next waiter. The holder's lease is lost with its next
// renewal, or at once by a notification, with a *LostError that wraps ErrRevoked and has the reason.
// Until then the holder works on: only guarded writes are safe. Use RequestRelease if the holder
// can be asked.
//
// Revoke waits for guarded transactions of the holder that have begun before, for a second at most.
// Then the error wraps ErrGuarded: the grant has ended, such a transaction can still commit, and the
// lock is granted after it. If the grant is not the current one, the error wraps ErrStale; if the
// name has no row, ErrNotFound. See leasetable.Client.Revoke.
func (c *Client) Revoke(ctx context.Context, name string, token Token, reason string) error {
	return c.leases.Revoke(ctx, name, token, reason)
}

// RequestRelease asks the holder of the grant with that token to release the lock. The holder sees
// it as Lease.ReleaseRequested, with its next renewal or at once by a notification, and decides. The
// errors are those of Revoke, except ErrGuarded.
func (c *Client) RequestRelease(ctx context.Context, name string, token Token, reason string) error {
	return c.leases.RequestRelease(ctx, name, token, reason)
}
