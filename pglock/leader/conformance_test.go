package leader_test

import (
	"context"
	"testing"

	"github.com/pglock/pglock-go/internal/conformance"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// TestConformance runs the suite that every kind of lock must pass on elections.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) func() conformance.Locker {
		t.Helper()
		f := newFixture(t)
		return func() conformance.Locker { return elections{f.client()} }
	})
}

// elections locks a name by leading its election.
type elections struct{ client *pglock.Client }

func (e elections) Lock(ctx context.Context, name string) (conformance.Unlock, error) {
	return e.campaign(ctx, name)
}

func (e elections) TryLock(ctx context.Context, name string) (conformance.Unlock, error) {
	return e.campaign(ctx, name, leader.WithLease(pglock.WithWait(0)))
}

func (e elections) campaign(ctx context.Context, name string, opts ...leader.Option) (conformance.Unlock, error) {
	election, err := leader.New(e.client, name, opts...)
	if err != nil {
		return nil, err
	}
	term, err := election.Campaign(ctx, "")
	if err != nil {
		return nil, err
	}
	return term.Resign, nil
}
