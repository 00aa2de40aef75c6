package leader_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// The cases of etcd's tests of elections: tests/integration/v3_election_test.go (TestElection…),
// v3election_grpc_test.go (TestV3Election…), clientv3/concurrency/election_test.go (TestResumeElection)
// and e2e/ctl_v3_elect_test.go (TestCtlV3Elect). Each test is named after its origin.

// TestEtcdElectionWait: three observers see each of three leaders that follow each other.
func TestEtcdElectionWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const observers, leaders = 3, 3
	var next [observers]chan struct{}
	seen := make(chan string)
	var all sync.WaitGroup
	for i := range observers {
		next[i] = make(chan struct{})
		c := f.client()
		all.Go(func() {
			for range leaders {
				seen <- f.observe(t.Context(), f.on(c)).payload()
				<-next[i]
			}
		})
	}
	for i := range leaders {
		e := f.candidate(fmt.Sprint("leader ", i))
		all.Go(func() {
			payload := fmt.Sprint("value of ", i)
			term, err := e.Campaign(t.Context(), payload)
			if err != nil {
				t.Error(err)
				return
			}
			for range observers {
				if s := <-seen; s != payload {
					t.Errorf("observed %q during the term of %q", s, payload)
				}
			}
			resign(t, term)
			for i := range next {
				next[i] <- struct{}{}
			}
		})
	}
	all.Wait()
}

// TestEtcdElectionFailover: the leader's client is closed, and an observer sees the next leader.
func TestEtcdElectionFailover(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.client()
	elect(t, f.on(first), "foo")
	o := f.observe(t.Context(), f.candidate("third"))
	o.sees("foo")
	second := f.campaigning(t.Context(), f.candidate("bar"), "bar")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.sees("bar")
	resign(t, locktest.Receive(t, second))
}

// TestEtcdElectionSessionRecampaign: a candidate that leads and campaigns again proclaims, instead of
// waiting for itself.
func TestEtcdElectionSessionRecampaign(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.candidate("a")
	first := elect(t, e, "abc")
	again := elect(t, e, "def")
	if again != first {
		t.Error("another term")
	}
	f.observe(t.Context(), e).sees("def")
	resign(t, again)
}

// TestEtcdElectionOnPrefixOfExistingKey: a lock whose name begins with that of the election.
func TestEtcdElectionOnPrefixOfExistingKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	l, err := c.TryAcquire(t.Context(), "ea", pglock.WithLabel(leader.PayloadLabel, "value"))
	if err != nil {
		t.Fatal(err)
	}
	term := elect(t, f.on(c), "abc")
	if got, err := f.on(c).Leader(t.Context()); err != nil || got.Payload != "abc" {
		t.Errorf("%+v, %v", got, err)
	}
	resign(t, term)
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEtcdElectionOnSessionRestart: a leader that restarts hands its term over to its successor, and a
// waiting candidate is not elected.
func TestEtcdElectionOnSessionRestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := f.client()
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
	e := f.candidate("a")
	resumed, err := e.Resume(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	if again := elect(t, e, "def"); again != resumed || again.Lease().Token() != fence.Token {
		t.Errorf("the term is %v, want %v", again.Lease().Fence(), fence)
	}
	f.observe(t.Context(), e).sees("def")
	cancel()
	if got := locktest.Receive(t, waiting); got != nil {
		t.Error("the waiting candidate was elected")
	}
	resign(t, resumed)
}

// TestEtcdResumeElection: an observer of a resumed term sees what it proclaims, and its end.
func TestEtcdResumeElection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	term := elect(t, f.candidate("a"), "candidate1")
	fence, err := term.Lease().HandOver()
	if err != nil {
		t.Fatal(err)
	}
	e := f.candidate("b")
	resumed, err := e.Resume(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	o := f.observe(t.Context(), f.candidate("observer"))
	o.sees("candidate1")
	if err := resumed.Proclaim(t.Context(), "foo"); err != nil {
		t.Fatal(err)
	}
	o.sees("foo")
	resign(t, resumed)
	if l, err, _ := o.next(); err != nil || l.Elected() {
		t.Errorf("after the resignation: %+v, %v", l, err)
	}
	if _, err := e.Resume(t.Context(), fence); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("a term that is over: %v", err)
	}
	fence.Name = "other"
	if _, err := e.Resume(t.Context(), fence); !errors.Is(err, leader.ErrInvalidOption) {
		t.Errorf("another election: %v", err)
	}
}

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

// TestEtcdV3ElectionCampaign: two campaigns, of which the second waits until the first resigns, and
// another one leaves the queue with its context.
func TestEtcdV3ElectionCampaign(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := elect(t, f.candidate("abc"), "abc")
	ctx, cancel := context.WithCancel(t.Context())
	leaving := f.campaigning(ctx, f.candidate("leaving"), "leaving")
	second := f.campaigning(t.Context(), f.candidate("def"), "def")
	cancel()
	if got := locktest.Receive(t, leaving); got != nil {
		t.Error("a candidate was elected after the end of its context")
	}
	select {
	case <-second:
		t.Error("two leaders")
	default:
	}
	resign(t, first)
	term := locktest.Receive(t, second)
	if term.Lease().Token() <= first.Lease().Token() {
		t.Error("the token does not grow")
	}
	resign(t, term)
}

// TestEtcdV3ElectionObserve: an observer sees what each leader proclaims, in order, and the last one in
// any case.
func TestEtcdV3ElectionObserve(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 10
	last := fmt.Sprint("b", n-1)
	observed := make(chan []string, 1)
	e := f.candidate("observer")
	ready := make(chan struct{})
	go func() {
		var all []string
		defer func() { observed <- all }()
		for l, err := range e.Observe(t.Context()) {
			if err != nil {
				t.Error(err)
				return
			}
			if len(all) == 0 {
				close(ready)
			}
			all = append(all, l.Payload)
			if l.Payload == last {
				return
			}
		}
	}()
	<-ready
	for _, who := range []string{"a", "b"} {
		term := elect(t, f.candidate(who), who)
		for i := range n {
			if err := term.Proclaim(t.Context(), fmt.Sprint(who, i)); err != nil {
				t.Error(err)
			}
		}
		defer resign(t, term)
		if who == "a" {
			resign(t, term)
		}
	}
	order := map[string]int{"": 0, "a": 1, "b": 2 + n}
	for i := range n {
		order[fmt.Sprint("a", i)], order[fmt.Sprint("b", i)] = 2+i, 3+n+i
	}
	at := 0
	for _, payload := range locktest.Receive(t, observed) {
		place, ok := order[payload]
		if payload != "" && (!ok || place < at) {
			t.Errorf("observed %q after place %d", payload, at)
		}
		at = max(at, place)
	}
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
