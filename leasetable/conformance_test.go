package leasetable_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/leasetable"
)

// leases locks by lease.
type leases struct{ client *leasetable.Client }

func (l leases) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.client.Acquire(ctx, name))
}

func (l leases) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.client.TryAcquire(ctx, name))
}

func unlockOf(l *leasetable.Lease, err error) (conformance.Unlock, error) {
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// locker is a kind of lock as a function for each call.
type locker struct {
	lock, try func(ctx context.Context, name string) (*leasetable.Lease, error)
}

func (l locker) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.lock(ctx, name))
}

func (l locker) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.try(ctx, name))
}

// permitsOf is a semaphore with that many permits, of which each holder has weight.
func permitsOf(n, weight int) func(*leasetable.Client) locker {
	return func(c *leasetable.Client) locker {
		call := func(how func(*leasetable.Semaphore, context.Context, int, ...leasetable.LeaseOption) (*leasetable.Lease, error)) func(context.Context, string) (*leasetable.Lease, error) {
			return func(ctx context.Context, name string) (*leasetable.Lease, error) {
				s, err := c.Semaphore(name, n)
				if err != nil {
					return nil, err
				}
				return how(s, ctx, weight)
			}
		}
		return locker{call((*leasetable.Semaphore).Acquire), call((*leasetable.Semaphore).TryAcquire)}
	}
}

// writers is a readers-writer lock without readers.
func writers(c *leasetable.Client) locker {
	call := func(how func(*leasetable.RWLock, context.Context, ...leasetable.LeaseOption) (*leasetable.Lease, error)) func(context.Context, string) (*leasetable.Lease, error) {
		return func(ctx context.Context, name string) (*leasetable.Lease, error) {
			l, err := c.RWLock(name)
			if err != nil {
				return nil, err
			}
			return how(l, ctx)
		}
	}
	return locker{call((*leasetable.RWLock).Lock), call((*leasetable.RWLock).TryLock)}
}

// several acquires the name together with one of three others.
func several(c *leasetable.Client) locker {
	names := func(name string) []string { return []string{name, fmt.Sprint(name, "/", rand.N(3))} }
	return locker{
		func(ctx context.Context, name string) (*leasetable.Lease, error) {
			return c.AcquireAll(ctx, names(name))
		},
		func(ctx context.Context, name string) (*leasetable.Lease, error) {
			return c.TryAcquireAll(ctx, names(name))
		},
	}
}

// TestConformanceOfOtherKinds runs the suite on locks that are exclusive by their weights. Two of
// three permits are a shared grant by their kind: another holder of one would fit beside it.
func TestConformanceOfOtherKinds(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*leasetable.Client) locker{
		"semaphore of 1":      permitsOf(1, 1),
		"all of 3 permits":    permitsOf(3, 3),
		"two of 3 permits":    permitsOf(3, 2),
		"readers-writer lock": writers,
		"several names":       several,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := newFixture(t)
				return func() conformance.Locker { return kind(f.open()) }
			})
		})
	}
}

// TestConformance runs the suite that every kind of lock must pass, in each form of the statements.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]leasetable.Option{
		"by default":                    nil,
		"a statement for each call":     {leasetable.WithBatches(1, false)},
		"the statement for many always": {leasetable.WithBatches(64, true)},
		"with holding rules":            {leasetable.WithMaxHold(time.Hour), leasetable.WithLockDelay(time.Minute)},
		"without notifications":         {leasetable.WithPollOnly()}, // I10
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := newFixture(t)
				return func() conformance.Locker { return leases{f.open(opts...)} }
			})
		})
	}
}

// permitLocks locks by permits, so many that two callers can't hold them at the same time.
type permitLocks struct {
	acquire func(ctx context.Context, name string, try bool) (*leasetable.Lease, error)
}

func (l permitLocks) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.acquire(ctx, name, false))
}

func (l permitLocks) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l.acquire(ctx, name, true))
}

// TestConformanceOfPermits runs the suite on semaphores and on the writers of readers-writer locks.
func TestConformanceOfPermits(t *testing.T) {
	t.Parallel()
	bySemaphore := func(n, weight int) func(c *leasetable.Client) permitLocks {
		return func(c *leasetable.Client) permitLocks {
			return permitLocks{func(ctx context.Context, name string, try bool) (*leasetable.Lease, error) {
				s, err := c.Semaphore(name, n)
				switch {
				case err != nil:
					return nil, err
				case try:
					return s.TryAcquire(ctx, weight)
				}
				return s.Acquire(ctx, weight)
			}}
		}
	}
	for name, kind := range map[string]func(c *leasetable.Client) permitLocks{
		"two of three permits": bySemaphore(3, 2),
		"one of one permit":    bySemaphore(1, 1),
		"writers": func(c *leasetable.Client) permitLocks {
			return permitLocks{func(ctx context.Context, name string, try bool) (*leasetable.Lease, error) {
				l, err := c.RWLock(name)
				switch {
				case err != nil:
					return nil, err
				case try:
					return l.TryLock(ctx)
				}
				return l.Lock(ctx)
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := newFixture(t)
				return func() conformance.Locker { return kind(f.open()) }
			})
		})
	}
}
