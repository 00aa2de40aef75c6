package pglock

import (
	"context"
	"strings"

	"github.com/pglock/pglock-go/leasetable"
)

// MaxNames is the largest number of names that AcquireAll acquires together.
const MaxNames = leasetable.MaxNames

// AcquireAll waits until the locks of all names are granted together, and returns one lease for all
// of them. Nothing is held until all are granted. The order of names is of no importance.
//
// Callers with overlapping names can't deadlock, none of them starves, and each name is granted first
// come, first served. The cost is idle time: a name that is free is not granted to later callers
// while the caller at the head of its queue waits for another name.
//
// The lease has one token, and its Guard guards all names. If one name is lost, the lease is lost, and
// the *LostError has that name. The other names stay held until Release, or until their TTL is over.
// See Lease.Names and Lease.Fences.
//
// An empty list and more than MaxNames names are refused with ErrInvalidOption, and so is a name that
// is given twice. The name of a semaphore or a readers-writer lock is refused with a *KindError. If
// ctx carries a held lease of one of the names, the error is a *HeldError; with WithJoin, AcquireAll
// joins that lease if it has all the names. Otherwise AcquireAll is like Acquire.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...LeaseOption) (*Lease, error) {
	l, err := c.leases.AcquireAll(ctx, names, opts...)
	return (*Lease)(l), err
}

// TryAcquireAll acquires the locks of all names if all of them are free and nobody waits for one of
// them. Otherwise it acquires nothing, and the error is a *BusyError (errors.Is ErrNotAcquired) for
// the name in the way whose lease lasts longest. Otherwise it is like AcquireAll.
func (c *Client) TryAcquireAll(ctx context.Context, names []string, opts ...LeaseOption) (*Lease, error) {
	l, err := c.leases.TryAcquireAll(ctx, names, opts...)
	return (*Lease)(l), err
}

// DoAll acquires the locks of all names, runs fn, and releases them: see AcquireAll. Otherwise it is
// like Do.
func (c *Client) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, strings.Join(names, ", "), together(names, c.AcquireAll), fn, opts)
}

// TryDoAll runs fn if the locks of all names are free: see TryAcquireAll. Otherwise it is like TryDo.
func (c *Client) TryDoAll(ctx context.Context, names []string, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, strings.Join(names, ", "), together(names, c.TryAcquireAll), fn, opts)
}

// together returns acquire, with names in place of the lock's name.
func together(names []string, acquire func(context.Context, []string, ...LeaseOption) (*Lease, error)) acquireFunc {
	return func(ctx context.Context, _ string, opts ...LeaseOption) (*Lease, error) {
		return acquire(ctx, names, opts...)
	}
}
