package leader_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// The cases of etcd's tests of elections: tests/integration/v3_election_test.go (TestElection…),
// v3election_grpc_test.go (TestV3Election…)
// and e2e/ctl_v3_elect_test.go (TestCtlV3Elect). Each test is named after its origin.

// TestEtcdElectionObserveCompacted: the history of the election is gone, and the leader is observed.
func TestEtcdElectionObserveCompacted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	e := f.on(c)
	resign(t, elect(t, e, "before"))
	pgtest.Eventually(t, locktest.Patience, "the row is pruned", func() bool {
		n, err := c.Prune(t.Context(), time.Millisecond)
		return err != nil || n == 1
	})
	if _, err := e.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
		t.Errorf("without a row: %v", err)
	}
	term := elect(t, e, "abc")
	if _, err := c.Prune(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	f.observe(t.Context(), e).sees("abc")
	resign(t, term)
}

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

// TestEtcdResumeElection, TestElectionOnSessionRestart: a leader that restarts hands its term over to its
// successor. A waiting candidate is not elected, and observers see what the successor proclaims.
func TestEtcdResumeElection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before, after := f.client(), f.client()
	term := elect(t, f.on(before), "abc")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := f.campaigning(ctx, f.candidate("123"), "123")
	fence, err := term.Lease().HandOver()
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease, err := after.Adopt(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	o := f.observe(t.Context(), f.candidate("observer"))
	o.sees("abc")
	if err := lease.SetLabels(t.Context(), map[string]string{leader.PayloadLabel: "def"}); err != nil {
		t.Error(err)
	}
	o.sees("def")
	cancel()
	if got := locktest.Receive(t, waiting); got != nil {
		t.Error("the waiting candidate was elected")
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if l, err, _ := o.next(); err != nil || l.Elected() {
		t.Errorf("after the resignation: %+v, %v", l, err)
	}
}
