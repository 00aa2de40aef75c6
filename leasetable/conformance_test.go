package leasetable_test

import (
	"context"
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
