package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/pglock"
)

// locker locks by the Lock that it has for a name.
type locker func(name string) pglock.Lock

func (l locker) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l(name).Acquire(ctx))
}

func (l locker) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlockOf(l(name).TryAcquire(ctx))
}

// leasesOf locks by the client's locks with one holder.
func leasesOf(c *pglock.Client) locker { return c.Lock }

func unlockOf(l *pglock.Lease, err error) (conformance.Unlock, error) {
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// TestConformance runs the suite that every kind of lock must pass: on locks with one holder in each
// form of the statements, and on locks that are exclusive by their weights. Two of three permits are a
// shared grant by their kind: another holder of one would fit beside it.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		lock func(c *pglock.Client, name string) pglock.Lock
		opts []pglock.Option
	}{
		"one holder":                    {lock: (*pglock.Client).Lock},
		"a statement for each call":     {(*pglock.Client).Lock, []pglock.Option{pglock.WithBatches(1, false)}},
		"the statement for many always": {(*pglock.Client).Lock, []pglock.Option{pglock.WithBatches(64, true)}},
		"with holding rules":            {(*pglock.Client).Lock, []pglock.Option{pglock.WithMaxHold(time.Hour), pglock.WithLockDelay(time.Minute)}},
		"without notifications":         {(*pglock.Client).Lock, []pglock.Option{pglock.WithPollOnly()}}, // I10
		"semaphore of 1":                {lock: permitsOf(1, 1)},
		"all of 3 permits":              {lock: permitsOf(3, 3)},
		"two of 3 permits":              {lock: permitsOf(3, 2)},
		"writers":                       {lock: (*pglock.Client).Writer},
		"several names":                 {lock: withAnother},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				f := newFixture(t)
				return func() conformance.Locker {
					c := f.open(kind.opts...)
					return locker(func(name string) pglock.Lock { return kind.lock(c, name) })
				}
			})
		})
	}
}

// permitsOf is a semaphore with n permits, of which each holder has weight.
func permitsOf(n, weight int) func(c *pglock.Client, name string) pglock.Lock {
	return func(c *pglock.Client, name string) pglock.Lock { return c.Semaphore(name, n).Weight(weight) }
}

// withAnother is the name together with one of three others.
func withAnother(c *pglock.Client, name string) pglock.Lock {
	return c.All(c.Lock(name), c.Lock(fmt.Sprint(name, "/", rand.N(3))))
}
