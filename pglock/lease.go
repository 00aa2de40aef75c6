package pglock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// Lease is one grant of one lock. Acquire, TryAcquire and Do return or pass one. It is safe for
// concurrent use, and its accessors never wait for the network.
//
//	held ──Release, Close──▶ released
//	  ├────Transfer──────────▶ released: a waiter is granted the lock
//	  ├────HandOver──────────▶ handed over: another process goes on with the grant
//	  └────deadline reached, grant gone──▶ lost
//
// All ends are final, and in all of them the Context is done.
//
// A *Lease can be converted to a *leasetable.Lease and back: they are the same value.
type Lease leasetable.Lease

func (l *Lease) lease() *leasetable.Lease { return (*leasetable.Lease)(l) }

// FromContext returns the lease of the lock of that name which ctx carries, and false if there is
// none. These contexts carry a lease: that of the function that Do and TryDo call, those of the
// lease's Context and WithContext, and those derived from them. The lease may have ended: see Err.
func FromContext(ctx context.Context, name string) (*Lease, bool) {
	l, ok := leasetable.FromContext(ctx, name)
	return (*Lease)(l), ok
}

// Name returns the lock's name. For a lease of several names it returns a text for people: see Names.
func (l *Lease) Name() string { return l.lease().Name() }

// Names returns the names that the lease holds, sorted: one, or those of AcquireAll.
func (l *Lease) Names() []string { return l.lease().Names() }

// Token returns the grant's fencing token. Renewals keep it.
func (l *Lease) Token() Token { return l.lease().Token() }

// Fence returns the grant's schema, name and token, for writers here and in other processes. That of
// a lease of several names has no name, and every check refuses it: see Fences.
func (l *Lease) Fence() Fence { return l.lease().Fence() }

// Fences returns the fence of each name that the lease holds, in the order of Names. All have the
// same token. See fencing.CheckAll.
func (l *Lease) Fences() []Fence { return l.lease().Fences() }

// Holder returns the name of the holder, as others see it.
func (l *Lease) Holder() string { return l.lease().Holder() }

// Context returns a context that is done when the lease is lost or released, always before the
// server could grant the lock to another holder. Its cause wraps ErrLost or ErrReleased. It has the
// values of the context that was given to Acquire.
//
// Do the protected work under it, or under WithContext if the work has its own context. In a
// process that was suspended, Context and Err report the loss at the first look after the pause.
// Writes that must not come late need Guard as well, since the process may be suspended after the
// look.
func (l *Lease) Context() context.Context { return l.lease().Context() }

// WithContext returns a context that is done when parent is done or when the lease ends. Its cause
// is parent's, or the lease's Err. It has parent's values and deadline. The caller must call cancel
// when the work has ended. cancel does not affect the lease.
func (l *Lease) WithContext(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	return l.lease().WithContext(parent)
}

// Done returns the channel that is closed when Context is done.
func (l *Lease) Done() <-chan struct{} { return l.lease().Done() }

// Err returns nil while the lease is held. Then it returns why the lease ended: a *LostError
// (errors.Is ErrLost), or an error that wraps ErrReleased.
func (l *Lease) Err() error { return l.lease().Err() }

// Deadline returns until when the lease is trusted unless it is renewed: the server's expiry less
// the safety margin.
func (l *Lease) Deadline() time.Time { return l.lease().Deadline() }

// Guard protects the writes of tx. After success, tx can commit only while this lease's grant is
// the current one: no other holder is granted the lock, or one of several, before tx ends. Call Guard before the first
// write. Renewals do not wait for tx.
//
// If the grant is not the current one, the error wraps ErrStale. If this process knows that the
// lease has ended, the error also wraps ErrLost or ErrReleased, and tx is unchanged. After any
// other error, roll tx back. See fencing.Check, which Guard calls.
func (l *Lease) Guard(ctx context.Context, tx fencing.Tx) error { return l.lease().Guard(ctx, tx) }

// Bind is Guard for transactions that write to protected tables: see fencing.Bind, which it calls.
// Its errors are those of Guard.
func (l *Lease) Bind(ctx context.Context, tx fencing.Tx) error { return l.lease().Bind(ctx, tx) }

// Extend makes sure that at least d remains until the lease's deadline. It renews the lease at once
// if less remains. Call it before a step that must not be interrupted. A d beyond the TTL extends
// the lease once. Later renewals never shorten it.
//
// If the lease has ended, the error wraps ErrLost or ErrReleased. If WithMaxHold does not allow the
// extension, it wraps ErrMaxHold. If the server does not answer, it wraps ErrUnavailable. If ctx ends
// first, it wraps ctx's error and cause. In the last three cases the lease is held as long as before.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error { return l.lease().Extend(ctx, d) }

// Release ends the lease. Its Context is done first. Then the lock is free, or is granted to the
// next waiter. Release may be called again, and returns nil after a success.
//
// If the lease was lost, the error is a *LostError (errors.Is ErrLost), and nothing is changed. If
// the server does not answer within 5 s, the error wraps ErrUnavailable: the lock then expires by
// its TTL, and Release may be called again.
//
// Release of a joined lease ends that lease only: see WithJoin.
//
// ctx bounds how long the call waits. The release continues without it. A ctx that is done when
// Release is called, as in many deferred calls, has no effect.
func (l *Lease) Release(ctx context.Context) error { return l.lease().Release(ctx) }

// ReleaseRequested returns a channel that is closed when the holder should release the lock. The
// lease is still held and renewed: the holder decides when to stop, and calls Release.
// ReleaseReason then returns why. A lease that ends without a request does not close the channel:
// wait for Done as well.
func (l *Lease) ReleaseRequested() <-chan struct{} { return l.lease().ReleaseRequested() }

// ReleaseReason returns the reason of the first request to release the lock. It is empty if there
// was no request, or a request without a reason.
func (l *Lease) ReleaseReason() string { return l.lease().ReleaseReason() }

// Unlocked reports whether the work runs without the lock: see WithFailOpen. Token is 0 then.
func (l *Lease) Unlocked() bool { return l.lease().Unlocked() }

// HandOver ends the lease in this process and leaves the lock to another one, which calls Adopt with
// the fence that HandOver returns, before the grant expires. Stop the protected work first. The
// Context is done, Err wraps ErrReleased, and Release and Close do not release the lock.
//
// Usually two thirds of the TTL are left. Call Extend before if the fence takes longer to arrive. If
// no process adopts the grant, the lock is free when it expires. If the lease has ended, the error
// wraps ErrLost or ErrReleased.
func (l *Lease) HandOver() (Fence, error) { return l.lease().HandOver() }

// Transfer ends the lease and grants the lock to the waiter with that holder's name (WithHolder), or to
// the first waiter if the name is empty, with a new token. Stop the protected work first. It waits until
// the waiter has taken the lock over.
//
// If there is no such waiter, the error wraps ErrNoWaiter, and the lease is still held: see Err. If the
// waiter leaves or does not respond within 1.5 s, the error wraps ErrNoWaiter too, and the lease has
// ended. See [leasetable.Lease.Transfer].
func (l *Lease) Transfer(ctx context.Context, holder string) error {
	return l.lease().Transfer(ctx, holder)
}

// SetLabels adds labels to those of the grant, and replaces those with the same keys. All together may
// have 16 KiB as JSON. Callers of Watch are notified. If the lease has ended, the error wraps ErrLost,
// ErrReleased or ErrStale; if the labels are invalid, ErrInvalidOption; if the server does not answer,
// ErrUnavailable.
func (l *Lease) SetLabels(ctx context.Context, labels map[string]string) error {
	return l.lease().SetLabels(ctx, labels)
}

// Downgrade turns the lease of a writer, from RWLock.Lock, into that of a reader. The lock is not
// free in between. Token, deadline and Context stay; readers that wait come in; Bind fails from now
// on. On a reader's lease it does nothing.
//
// The error is a *KindError for another kind of lock. It wraps ErrLost or ErrReleased if the lease
// has ended. If it wraps ErrUnavailable or the error of ctx, the grant may be a reader's: call
// Downgrade again. ctx bounds the call. See leasetable.Lease.Downgrade.
func (l *Lease) Downgrade(ctx context.Context) error { return l.lease().Downgrade(ctx) }

// TryUpgrade makes the only reader, with a lease from RWLock.RLock, the writer. It returns a new
// lease with a new token, whose Context has the values of ctx. The old lease has ended: its Context
// is done, and Release does nothing.
//
// If there is another reader, or a guarded transaction of this one is open, the error is a
// *BusyError (errors.Is ErrNotAcquired), and the lease is held as before. TryUpgrade does not wait:
// two readers would wait for each other. The other errors are those of Downgrade.
func (l *Lease) TryUpgrade(ctx context.Context) (*Lease, error) {
	writer, err := l.lease().TryUpgrade(ctx)
	return (*Lease)(writer), err
}

// Token is a fencing token: a number that grows with every grant. It is a [fencing.Token].
type Token = fencing.Token

// Fence identifies one grant of one lock by its fields Schema, Name and Token. It is a
// [fencing.Fence].
type Fence = fencing.Fence
