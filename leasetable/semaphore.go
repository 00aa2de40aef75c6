package leasetable

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/leasetable/internal/store"
)

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
// LockInfo.Grants has the holders. Revoke and RequestRelease concern one of them, by its token.
//
// A call whose ctx carries leases of this semaphore acquires further permits. Acquire returns a
// *HeldError if the leases leave too few of them: it would wait for itself.
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
	carried := carriedPermits{s.name, s.client, map[*Lease]int{}}
	_ = ctx.Value(&carried)
	held := 0
	for _, n := range carried.weights {
		held += n
	}
	for l := range carried.weights {
		if held+weight > s.capacity && weight <= s.capacity {
			return nil, &HeldError{Name: s.name, Token: l.Token(), Holder: l.Holder(), permits: held}
		}
	}
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
// until enough are released. A holder of all permits, if n is another number, shares the semaphore
// from now on, and its Bind fails.
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
	var before int
	err = c.retryChange(ctx, func(ctx context.Context) (err error) {
		before, err = c.store.Resize(ctx, s.name, n)
		return err
	})
	switch {
	case err != nil:
		return nil, c.explainIn(ctx, fmt.Sprintf("resize %q", s.name), err)
	case before == -1:
		return nil, &KindError{Name: s.name, Wanted: n}
	case before == -2:
		return nil, &KindError{Name: s.name, Wanted: n, Found: allPermits}
	}
	return resized, nil
}

// acquirePermits is acquire for a name with permits.
func (c *Client) acquirePermits(ctx context.Context, name string, permits store.Permits, opts []LeaseOption, how func(*acquisition, context.Context) (store.Grant, error)) (*Lease, error) {
	opts, err := c.defined(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	cfg, err := c.cfg.leaseWith(opts)
	if err != nil {
		return nil, err
	}
	if cfg.minHold > 0 {
		return nil, invalidOption("%q: WithMinHold: must be 0 for a lock with permits", name)
	}
	cfg = cfg.forLocks(nil, permits)
	if permits.Capacity == allPermits {
		return c.acquireOrJoin(ctx, name, cfg, how)
	}
	if cfg.join {
		return nil, invalidOption("semaphore %q: WithJoin: a semaphore's leases can't be joined: acquire permits for each of them", name)
	}
	return c.acquireAs(ctx, name, cfg, how)
}
