package leasetable

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// allPermits is the number of permits of a readers–writer lock.
const allPermits = 1 << 30

// MaxPermits is the largest number of permits of a semaphore.
const MaxPermits = allPermits - 1

// Semaphore is a lock that several holders have at the same time: n permits, of which each holder
// acquires one or more. It is safe for concurrent use. It holds no resources.
//
// Each grant is a Lease with a token of its own. It is renewed, lost and released like that of any
// lock, and Lease.Guard works. Lease.Bind is refused with fencing.ErrShared, since concurrent
// holders have no order, unless the grant has all permits.
//
// Waiters are served first come, first served across processes, also if a later one needs fewer
// permits. A waiter whose process does not respond within 1.5 s of a release is skipped.
//
// Get and Locks show the name, but not who holds its permits. The view locks_held does. Revoke,
// RequestRelease and HandOver work for grants of all permits only.
//
// A call whose ctx carries a lease of this semaphore acquires further permits. It waits for itself
// if there are not enough of them.
type Semaphore struct {
	client   *Client
	name     string
	capacity int
}

// Semaphore returns the semaphore with that name and n permits, 1 to MaxPermits. It does not
// contact the database. The first acquire creates the semaphore.
//
// All clients must use the same n, and the name for nothing else. Otherwise acquiring fails with a
// *KindError (errors.Is ErrKind). Resize changes n.
func (c *Client) Semaphore(name string, n int) (*Semaphore, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if n < 1 || n > MaxPermits {
		return nil, invalidOption("semaphore %q: %d permits: must be from 1 to %d", name, n, MaxPermits)
	}
	return &Semaphore{c, name, n}, nil
}

// Acquire waits until weight permits are granted to this call, and returns their lease. weight is 1
// to n. Everything else is as for Client.Acquire.
func (s *Semaphore) Acquire(ctx context.Context, weight int, opts ...LeaseOption) (*Lease, error) {
	return s.acquire(ctx, weight, opts, (*acquisition).wait)
}

// TryAcquire acquires weight permits if they are free and nobody waits for the semaphore. Otherwise
// it returns a *BusyError (errors.Is ErrNotAcquired) with the holder whose lease ends first.
// Everything else is as for Client.TryAcquire.
func (s *Semaphore) TryAcquire(ctx context.Context, weight int, opts ...LeaseOption) (*Lease, error) {
	return s.acquire(ctx, weight, opts, (*acquisition).once)
}

func (s *Semaphore) acquire(ctx context.Context, weight int, opts []LeaseOption, how func(*acquisition, context.Context) (store.Grant, error)) (*Lease, error) {
	if weight < 1 || weight > s.capacity {
		return nil, invalidOption("semaphore %q: weight %d: must be from 1 to %d, its permits", s.name, weight, s.capacity)
	}
	return s.client.acquirePermits(ctx, s.name, store.Permits{Capacity: s.capacity, Weight: weight}, opts, how)
}

// Resize changes the number of permits to n, 1 to MaxPermits, for all clients. It creates the
// semaphore if need be. Holders keep their permits: if they have more than n, nobody is granted any
// until enough are released.
//
// Only calls on the returned Semaphore, and on those of other clients with the same n, succeed from
// now on. Calls with the old n fail with a *KindError, also those that wait. If the name is not a
// semaphore's, nothing is changed, and the error is a *KindError. If the server does not answer,
// the error wraps ErrUnavailable, and the change may have been made. ctx bounds the call.
func (s *Semaphore) Resize(ctx context.Context, n int) (*Semaphore, error) {
	resized, err := s.client.Semaphore(s.name, n)
	if err != nil {
		return nil, err
	}
	c := s.client
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	var before int
	err = c.retry(ctx, c.closing, func(ctx context.Context) (err error) {
		before, err = c.store.Resize(ctx, s.name, n)
		return err
	})
	switch {
	case err != nil:
		return nil, c.store.Explain(fmt.Sprintf("resize %q", s.name), err)
	case before == -1:
		return nil, &KindError{Name: s.name, Wanted: n}
	case before == -2:
		return nil, &KindError{Name: s.name, Wanted: n, Found: allPermits}
	}
	return resized, nil
}

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

// acquirePermits is acquire for a name with permits.
func (c *Client) acquirePermits(ctx context.Context, name string, permits store.Permits, opts []LeaseOption, how func(*acquisition, context.Context) (store.Grant, error)) (*Lease, error) {
	cfg, err := c.cfg.lease.with(opts)
	if err != nil {
		return nil, err
	}
	if cfg.minHold > 0 {
		return nil, invalidOption("%q: WithMinHold: must be 0 for a lock with permits", name)
	}
	cfg.permits = permits
	if permits.Capacity == allPermits {
		return c.acquireOrJoin(ctx, name, cfg, how)
	}
	if cfg.join {
		return nil, invalidOption("semaphore %q: WithJoin: a semaphore's leases can't be joined: acquire permits for each of them", name)
	}
	return c.acquireAs(ctx, name, cfg, how)
}

// KindError says that a name is used as another kind of lock.
type KindError struct {
	Name   string
	Wanted int // the number of permits that the caller meant; 0: a lock with one holder
	Found  int // the number that it has
}

func (e *KindError) Error() string {
	return fmt.Sprintf("%v: %q is %s, not %s", ErrKind, e.Name, kind(e.Found), kind(e.Wanted))
}

// Unwrap makes errors.Is find ErrKind.
func (e *KindError) Unwrap() error { return ErrKind }

// kind describes the kind of lock with that number of permits.
func kind(permits int) string {
	switch permits {
	case 0:
		return "a lock with one holder"
	case allPermits:
		return "a readers-writer lock"
	}
	return fmt.Sprintf("a semaphore with %d permits", permits)
}
