package leader_test

import (
	"errors"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// The cases of etcd's tests of elections: tests/integration/v3_election_test.go (TestElection…),
// v3election_grpc_test.go (TestV3Election…)
// and e2e/ctl_v3_elect_test.go (TestCtlV3Elect). Each test is named after its origin.

// TestEtcdNotLeader: who does not lead can't proclaim, and can resign (ErrElectionNotLeader,
// ErrElectionNoLeader).
func TestEtcdNotLeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.candidate("a")
	if _, err := e.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
		t.Errorf("no leader: %v", err)
	}
	term := elect(t, e, "a")
	resign(t, term)
	resign(t, term) // again
	if err := term.Proclaim(t.Context(), "b"); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("proclaim after the term: %v", err)
	}
	if _, err := e.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
		t.Errorf("after the resignation: %v", err)
	}
}

// TestEtcdCtlV3Elect: a waiting candidate leads when the process of the leader has died.
func TestEtcdCtlV3Elect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	term := elect(t, f.candidate("p1"), "p1")
	second := f.campaigning(t.Context(), f.candidate("p2"), "p2")
	f.expire()
	next := locktest.Receive(t, second)
	if got, err := f.candidate("observer").Leader(t.Context()); err != nil || got.Payload != "p2" || got.Name != "p2" || got.Token != next.Lease().Token() {
		t.Errorf("%+v, %v", got, err)
	}
	if err := term.Proclaim(t.Context(), "late"); !errors.Is(err, pglock.ErrStale) && !errors.Is(err, pglock.ErrLost) {
		t.Errorf("a dead leader proclaims: %v", err)
	}
	_ = term.Resign(t.Context()) // it was lost
	resign(t, next)
}
