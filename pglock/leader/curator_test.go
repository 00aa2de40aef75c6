package leader_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// Cases of Apache Curator's TestLeaderLatch and TestLeaderSelector, which each test names. Left out are
// those about Curator's own hooks and listeners, and those about the queue and exclusion, which the
// conformance suite has.

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
	proxy.Refuse(false)
	if again := locktest.Receive(t, led); again <= first {
		t.Errorf("token %d after %d", again, first)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
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
