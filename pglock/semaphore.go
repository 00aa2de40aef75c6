package pglock

import (
	"context"

	"github.com/pglock/pglock-go/leasetable"
)

// MaxPermits is the largest number of permits of a semaphore.
const MaxPermits = leasetable.MaxPermits

// Semaphore is a lock that several holders have at the same time: n permits, of which each holder
// acquires one or more. It is safe for concurrent use, and holds no resources.
//
// Each grant is a Lease with a token of its own, and lives like that of any lock. Lease.Guard works.
// Lease.Bind returns fencing.ErrShared unless the grant has all permits, since concurrent holders
// have no order. Waiters are served first come, first served: a waiter for many permits is not
// overtaken by later ones for few.
//
// LockInfo.Grants has the holders. Revoke and RequestRelease concern one of them, by its token.
type Semaphore struct {
	name   string
	leases *leasetable.Semaphore
}

// Semaphore returns the semaphore of that name with n permits, 1 to MaxPermits. The error wraps
// ErrInvalidName or ErrInvalidOption. The database is not contacted: the first acquire creates the
// semaphore.
//
// All clients must use the same n. Otherwise acquiring fails with a *KindError (errors.Is ErrKind),
// as it does if the name is used for another kind of lock. Resize changes n.
func (c *Client) Semaphore(name string, n int) (*Semaphore, error) {
	s, err := c.leases.Semaphore(name, n)
	if err != nil {
		return nil, err
	}
	return &Semaphore{name, s}, nil
}

// Acquire waits until weight permits are granted, 1 to n. Otherwise it is like Client.Acquire.
func (s *Semaphore) Acquire(ctx context.Context, weight int, opts ...LeaseOption) (*Lease, error) {
	l, err := s.leases.Acquire(ctx, weight, opts...)
	return (*Lease)(l), err
}

// TryAcquire acquires weight permits if they are free and nobody waits. Otherwise the error is a
// *BusyError with the holder whose lease ends first, as from Client.TryAcquire.
func (s *Semaphore) TryAcquire(ctx context.Context, weight int, opts ...LeaseOption) (*Lease, error) {
	l, err := s.leases.TryAcquire(ctx, weight, opts...)
	return (*Lease)(l), err
}

// Do runs fn while it holds weight permits. Otherwise it is like Client.Do.
func (s *Semaphore) Do(ctx context.Context, weight int, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, s.name, s.weighing(weight, s.Acquire), fn, opts)
}

// TryDo runs fn if weight permits are free. Otherwise it is like Client.TryDo.
func (s *Semaphore) TryDo(ctx context.Context, weight int, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, s.name, s.weighing(weight, s.TryAcquire), fn, opts)
}

// weighing returns acquire, with weight in place of the lock's name.
func (s *Semaphore) weighing(weight int, acquire func(context.Context, int, ...LeaseOption) (*Lease, error)) acquireFunc {
	return func(ctx context.Context, _ string, opts ...LeaseOption) (*Lease, error) {
		return acquire(ctx, weight, opts...)
	}
}

// Resize changes the number of permits to n, for all clients, and returns the semaphore with n.
// Holders keep their permits: if they have more than n, no more are granted until enough are
// released. Calls with the old n fail from now on with a *KindError, also those that wait.
//
// The error is a *KindError if the name is not a semaphore's. It wraps ErrInvalidOption, or
// ErrUnavailable if the server does not answer; the change may have been made then. ctx bounds the
// call.
func (s *Semaphore) Resize(ctx context.Context, n int) (*Semaphore, error) {
	resized, err := s.leases.Resize(ctx, n)
	if err != nil {
		return nil, err
	}
	return &Semaphore{s.name, resized}, nil
}

// RWLock is a lock that many readers or one writer hold. It is safe for concurrent use, and holds
// no resources.
//
// Each grant is a Lease with a token of its own. A reader's Guard lets the guards of other readers
// pass and keeps writers out. A reader's Bind returns fencing.ErrShared. Waiters are served first
// come, first served: readers that come after a waiting writer wait for it. Lease.Downgrade makes a
// writer a reader, and Lease.TryUpgrade the only reader the writer.
type RWLock struct {
	name   string
	leases *leasetable.RWLock
}

// RWLock returns the readers-writer lock of that name. The error wraps ErrInvalidName. The database
// is not contacted. If the name is used for another kind of lock, acquiring fails with a *KindError
// (errors.Is ErrKind).
func (c *Client) RWLock(name string) (*RWLock, error) {
	l, err := c.leases.RWLock(name)
	if err != nil {
		return nil, err
	}
	return &RWLock{name, l}, nil
}

// Lock waits until the caller is the only holder. Otherwise it is like Client.Acquire.
func (l *RWLock) Lock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	lease, err := l.leases.Lock(ctx, opts...)
	return (*Lease)(lease), err
}

// TryLock is Lock without waiting, like Client.TryAcquire.
func (l *RWLock) TryLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	lease, err := l.leases.TryLock(ctx, opts...)
	return (*Lease)(lease), err
}

// RLock waits until no writer holds the lock, and none has waited for it longer. Otherwise it is
// like Client.Acquire.
func (l *RWLock) RLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	lease, err := l.leases.RLock(ctx, opts...)
	return (*Lease)(lease), err
}

// TryRLock is RLock without waiting, like Client.TryAcquire. It fails while a writer waits.
func (l *RWLock) TryRLock(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	lease, err := l.leases.TryRLock(ctx, opts...)
	return (*Lease)(lease), err
}

// Do runs fn while it holds the lock as the writer. Otherwise it is like Client.Do.
func (l *RWLock) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, l.name, unnamed(l.Lock), fn, opts)
}

// RDo runs fn while it holds the lock as a reader. Otherwise it is like Client.Do.
func (l *RWLock) RDo(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return do(ctx, l.name, unnamed(l.RLock), fn, opts)
}

// unnamed returns acquire as a function that ignores the lock's name.
func unnamed(acquire func(context.Context, ...LeaseOption) (*Lease, error)) acquireFunc {
	return func(ctx context.Context, _ string, opts ...LeaseOption) (*Lease, error) { return acquire(ctx, opts...) }
}
