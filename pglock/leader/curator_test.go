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
	ok(t, err)
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
