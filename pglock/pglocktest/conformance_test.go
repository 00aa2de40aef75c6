package pglocktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type leases struct{ of func(name string) pglock.Lock }

func (l leases) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlocker(l.of(name).Acquire(ctx))
}

func (l leases) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return unlocker(l.of(name).TryAcquire(ctx))
}

func unlocker(l *pglock.Lease, err error) (conformance.Unlock, error) {
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// calm makes no lease renew while a test runs, however slow the machine is.
var calm = pglock.WithTTL(5 * time.Minute)

// places are the two places of locks.
var places = map[string]func(t *testing.T) *pglocktest.Locks{
	"fake":   func(t *testing.T) *pglocktest.Locks { t.Helper(); return pglocktest.Fake(t, calm) },
	"server": func(t *testing.T) *pglocktest.Locks { t.Helper(); return pglocktest.New(t, pgtest.Pool(t), calm) },
}

// TestConformance runs the suite of the real locks on fakes of all kinds of locks.
func TestConformance(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(c *pglock.Client, name string) pglock.Lock{
		"one holder":    (*pglock.Client).Lock,
		"one permit":    func(c *pglock.Client, name string) pglock.Lock { return c.Semaphore(name, 1) },
		"all permits":   func(c *pglock.Client, name string) pglock.Lock { return c.Semaphore(name, 3).Weight(3) },
		"writers":       (*pglock.Client).Writer,
		"several names": func(c *pglock.Client, name string) pglock.Lock { return c.All(c.Lock(name), c.Lock(name+" too")) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) func() conformance.Locker {
				t.Helper()
				k := pglocktest.Fake(t)
				return func() conformance.Locker {
					c := k.Open()
					return leases{func(name string) pglock.Lock { return of(c, name) }}
				}
			})
		})
	}
}
