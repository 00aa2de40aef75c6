package leader_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// The cases of Apache Curator's tests of leaders: TestLeaderLatch, TestLeaderSelector and
// TestLeaderSelectorParticipants. Each test names its origins. Left out are cases about Curator's own
// hooks (testRaceAtStateChanged, testCheckLeaderShipTiming, testResetRace, testCreateDeleteRace,
// testWithCircuitBreaker, error policies) and about listeners that a latch does or does not notify.

// TestCuratorUncreatedPathGetLeader: LeaderLatch.testUncreatedPathGetLeader. Nobody ever campaigned.
func TestCuratorUncreatedPathGetLeader(t *testing.T) {
	t.Parallel()
	e := newFixture(t).candidate("a")
	if _, err := e.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
		t.Error(err)
	}
	if all, err := e.Candidates(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if term, leads := e.Term(); term != nil || leads {
		t.Error("it leads")
	}
}

// TestCuratorWatchedNodeDeletedOnReconnect: LeaderLatch.testWatchedNodeDeletedOnReconnect and
// testLeadershipElectionWhenNodeDisappearsAfterChildrenAreRetrieved. The queue's rows vanish while the
// leader resigns, and the candidate is elected all the same.
func TestCuratorWatchedNodeDeletedOnReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := elect(t, f.candidate("1"), "1")
	second := f.campaigning(t.Context(), f.candidate("2"), "2")
	f.sql("DELETE FROM pglock.lock_waiters")
	resign(t, first)
	resign(t, locktest.Receive(t, second))
}

// TestCuratorCorrectWatching: LeaderLatch.testCorrectWatching. A candidate in the middle leaves, and the
// one before it is not elected.
func TestCuratorCorrectWatching(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	all := names(4)
	term := elect(t, f.candidate(all[0]), all[0])
	before := f.campaigning(t.Context(), f.candidate(all[1]), all[1])
	ctx, leave := context.WithCancel(t.Context())
	leaving := f.campaigning(ctx, f.candidate(all[2]), all[2])
	after := f.campaigning(t.Context(), f.candidate(all[3]), all[3])
	leave()
	if locktest.Receive(t, leaving) != nil {
		t.Error("elected after it left")
	}
	select {
	case <-before:
		t.Error("elected beside the leader")
	case <-after:
		t.Error("elected beside the leader")
	case <-time.After(50 * time.Millisecond):
	}
	resign(t, term)
	resign(t, locktest.Receive(t, before))
	resign(t, locktest.Receive(t, after))
}

// TestCuratorWaiting: LeaderLatch.testWaiting, testBasic and testBasicAlt. Ten candidates of one client
// lead one at a time, and those who campaign one after the other lead in that order.
func TestCuratorWaiting(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	const n = 10
	var leading runners
	var all sync.WaitGroup
	for _, name := range names(n) {
		all.Go(func() {
			term, err := f.on(c).Campaign(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			leave := leading.enter(name)
			time.AfterFunc(2*time.Millisecond, leave)
			pgtest.Eventually(t, locktest.Patience, "it has led", func() bool { leading.mu.Lock(); defer leading.mu.Unlock(); return leading.now == 0 })
			resign(t, term)
		})
	}
	all.Wait()
	if leading.max != 1 || len(leading.terms) != n {
		t.Errorf("%d leaders at the same time, %d terms", leading.max, len(leading.terms))
	}

	first := elect(t, f.candidate("first"), "first")
	var waiting []<-chan *leader.Term
	for _, name := range names(4) {
		waiting = append(waiting, f.campaigning(t.Context(), f.candidate(name), name))
	}
	resign(t, first)
	var order []string
	for _, w := range waiting {
		term := locktest.Receive(t, w)
		l, err := f.candidate("observer").Leader(t.Context())
		if err != nil {
			t.Error(err)
		}
		order = append(order, l.Name)
		resign(t, term)
	}
	if !slices.Equal(order, names(4)) {
		t.Errorf("the order is %v", order)
	}
}

// TestCuratorLostConnection: LeaderLatch.testLostConnection, testNoServerAtStart; LeaderSelector
// testErrorPolicies, testServerDying, testKillServerThenCloseShouldElectNewLeader. The server can't be
// reached: the work ends before the lease does. It is back: the candidate is elected again.
func TestCuratorLostConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.pool.Config()
	proxy := faultproxy.New(t, net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))))
	config.ConnConfig.Fallbacks = nil
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", proxy.Addr())
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client := locktest.ClientOn(t, pool, pglock.WithSchema(f.schema), pglock.WithLogger(nil), pglock.WithTTL(time.Second))
	e := f.on(client)
	led, ended := make(chan pglock.Token, 10), make(chan error, 10)
	stop := run(t, e, func(ctx context.Context, term *leader.Term) error {
		led <- term.Lease().Token()
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	})
	first := locktest.Receive(t, led)
	proxy.Refuse(true)
	proxy.Sever()
	if err := locktest.Receive(t, ended); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the work ended with %v", err)
	}
	if err := e.Check(time.Hour); err != nil {
		t.Errorf("after the end of the work: %v", err)
	}
	proxy.Refuse(false)
	if again := locktest.Receive(t, led); again <= first {
		t.Errorf("token %d after %d", again, first)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// TestCuratorCallbackSanity: LeaderLatch.testCallbackSanity; LeaderSelector.testAutoRequeue and
// testRotatingLeadership. Five candidates lead three times each, in turn, and never two at a time.
func TestCuratorCallbackSanity(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const candidates, turns = 5, 3
	var leading runners
	done := make(chan struct{}, candidates)
	for _, name := range names(candidates) {
		e, others := f.candidate(name), f.candidate("observer")
		n := 0
		run(t, e, func(ctx context.Context, _ *leader.Term) error {
			defer leading.enter(name)()
			if n++; n == turns {
				done <- struct{}{}
			}
			if n > turns {
				return nil
			}
			for ctx.Err() == nil { // until all others wait
				all, err := others.Candidates(ctx)
				if err != nil || len(all) >= candidates-1 {
					return err
				}
			}
			return ctx.Err()
		})
	}
	for range candidates {
		locktest.Receive(t, done)
	}
	leading.mu.Lock()
	defer leading.mu.Unlock()
	for i := range turns {
		round := slices.Clone(leading.terms[i*candidates : (i+1)*candidates])
		slices.Sort(round)
		if !slices.Equal(round, names(candidates)) {
			t.Errorf("round %d: %v", i, round)
		}
	}
	if leading.max != 1 {
		t.Errorf("%d at the same time", leading.max)
	}
}

// TestCuratorInterruptLeadership: LeaderSelector.testInterruptLeadership, -WithRequeue and
// testLeaderNodeDeleteOnInterrupt. Somebody asks the leader to resign: its work ends, then its term, and
// it campaigns again.
func TestCuratorInterruptLeadership(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	operator := f.client()
	led, ended := make(chan *leader.Term, 10), make(chan error, 10)
	e := f.candidate("a")
	stop := run(t, e, func(ctx context.Context, term *leader.Term) error {
		led <- term
		<-ctx.Done()
		if err := term.Lease().Err(); err != nil {
			t.Errorf("the term ended before the work: %v", err)
		}
		ended <- context.Cause(ctx)
		return ctx.Err()
	})
	first := locktest.Receive(t, led)
	if err := operator.RequestRelease(t.Context(), "e", first.Lease().Token(), "deployment"); err != nil {
		t.Fatal(err)
	}
	if err := locktest.Receive(t, ended); !errors.Is(err, leader.ErrResignRequested) {
		t.Errorf("the work ended with %v", err)
	}
	second := locktest.Receive(t, led)
	if second.Lease().Token() <= first.Lease().Token() || !errors.Is(first.Lease().Err(), pglock.ErrReleased) {
		t.Errorf("%v after %v, %v", second.Lease().Token(), first.Lease().Token(), first.Lease().Err())
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if k, err := operator.Get(t.Context(), "e"); err != nil || k.Held() {
		t.Errorf("after Run: %+v, %v", k, err)
	}
}

// TestCuratorKillSession: LeaderSelector.testKillSessionThenCloseShouldElectNewLeader, testInterruption.
// The leader's lease is gone. Its work is interrupted, one candidate of the two leads, and when it
// stops, the other one does.
func TestCuratorKillSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var leading runners
	led := make(chan string, 10)
	stops := map[string]func() error{}
	for _, name := range names(2) {
		e := f.on(f.client(pglock.WithTTL(time.Second)), leader.WithLease(pglock.WithHolder(name)))
		stops[name] = run(t, e, func(ctx context.Context, _ *leader.Term) error {
			defer leading.enter(name)()
			led <- name
			<-ctx.Done()
			return ctx.Err()
		})
	}
	locktest.Receive(t, led)
	f.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity' WHERE name = 'e'")
	second := locktest.Receive(t, led)
	if err := stops[second](); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if third := locktest.Receive(t, led); third == second {
		t.Errorf("%s leads after it was stopped", third)
	}
}

// TestCuratorClosing: LeaderSelector.testClosing, LeaderLatch.testCallbackDontNotify. A candidate that
// stops does not disturb the leader, and a leader that stops does not lead.
func TestCuratorClosing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	led := make(chan struct{}, 1)
	e := f.candidate("leader")
	stop := run(t, e, func(ctx context.Context, _ *leader.Term) error {
		led <- struct{}{}
		<-ctx.Done()
		return nil
	})
	locktest.Receive(t, led)
	other := f.candidate("other")
	stopOther := run(t, other, func(context.Context, *leader.Term) error { t.Error("two leaders"); return nil })
	pgtest.Eventually(t, locktest.Patience, "it waits", func() bool {
		all, err := e.Candidates(t.Context())
		return err != nil || len(all) == 1
	})
	if err := stopOther(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_, leads := e.Term()
	if _, otherLeads := other.Term(); !leads || otherLeads {
		t.Errorf("the leader leads: %v, the other candidate: %v", leads, otherLeads)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, leads := e.Term(); leads {
		t.Error("it leads after it was stopped")
	}
}

// TestCuratorParticipants: LeaderSelectorParticipants.testId and testBasic. All candidates see the same
// leader and the same candidates, by name.
func TestCuratorParticipants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	term := elect(t, f.candidate("A is A"), "")
	var waiting []<-chan *leader.Term
	for _, name := range names(5) {
		waiting = append(waiting, f.campaigning(ctx, f.candidate(name), name))
	}
	for range 3 {
		e := f.candidate("observer")
		l, err := e.Leader(t.Context())
		all, err2 := e.Candidates(t.Context())
		var found []string
		for _, c := range all {
			found = append(found, c.Holder)
		}
		if err := errors.Join(err, err2); err != nil || l.Name != "A is A" || !slices.Equal(found, names(5)) {
			t.Errorf("%+v, %v, %v", l, found, err)
		}
	}
	cancel()
	for _, w := range waiting {
		locktest.Receive(t, w)
	}
	resign(t, term)
}
