package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// TestConnectTimeouts: the connection string's connect_timeout counts, shorter or longer, and without
// one the time that a busy server gets.
func TestConnectTimeouts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		setting           string
		busy, least, most time.Duration
	}{
		{"1", 0, 900 * time.Millisecond, 2500 * time.Millisecond},
		{"1", 8 * time.Second, 900 * time.Millisecond, 2500 * time.Millisecond},
		{"0", 0, 4900 * time.Millisecond, 7 * time.Second},
		{"0", 8 * time.Second, 7900 * time.Millisecond, 10 * time.Second},
		{"8", 0, 7900 * time.Millisecond, 10 * time.Second},
	} {
		t.Run(fmt.Sprint(tc.setting, " ", tc.busy), func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.New(t, address(pgtest.Pool(t).Config().ConnConfig))
			there, err := url.Parse(proxy.URL(pgtest.URL(t)))
			if err != nil {
				t.Fatal(err)
			}
			query := there.Query()
			query.Set("connect_timeout", tc.setting)
			there.RawQuery = query.Encode()
			config, err := pgx.ParseConfig(there.String())
			if err != nil {
				t.Fatal(err)
			}
			proxy.Freeze(true)
			began := time.Now()
			conn, err := link.Connect(t.Context(), config, tc.busy)
			if err == nil {
				_ = conn.Close(t.Context())
				t.Fatal("a frozen address was connected to")
			}
			if took := time.Since(began); took < tc.least || took > tc.most {
				t.Errorf("gave up after %v, want %v to %v: %v", took, tc.least, tc.most, err)
			}
			if !link.Unanswered(err) {
				t.Errorf("an accepted dial was not answered: %v", err)
			}
			config.DialFunc = func(_ context.Context, network, _ string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: network, Err: context.DeadlineExceeded}
			}
			if _, err = link.Connect(t.Context(), config, tc.busy); err == nil || link.Unanswered(err) {
				t.Errorf("a host that is not reached was busy: %v", err)
			}
		})
	}
}

// TestASlowNetworkConnects: passwords and the first statements fit in the bounds at a round trip of
// 500 ms.
func TestASlowNetworkConnects(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	proxy := faultproxy.New(t, address(pool.Config().ConnConfig))
	user := pgtest.UserPool(t, pool, pgtest.Schema(t, pool)).Config().ConnConfig
	proxy.Delay(250 * time.Millisecond) // each way
	began := time.Now()
	conn, err := link.Connect(t.Context(), via(t, user, proxy), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connected after %v", time.Since(began).Round(time.Millisecond))
	_ = conn.Close(t.Context())
}

// TestHooksAreBounded: a hanging hook of the application ends with its context.
func TestHooksAreBounded(t *testing.T) {
	t.Parallel()
	hang := func(stuck *atomic.Bool, ctx context.Context) error {
		if stuck.Load() {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	for name, hook := range map[string]func(c *pgxpool.Config, stuck *atomic.Bool){
		"BeforeConnect": func(c *pgxpool.Config, stuck *atomic.Bool) {
			c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { return hang(stuck, ctx) }
		},
		"AfterConnect": func(c *pgxpool.Config, stuck *atomic.Bool) {
			c.AfterConnect = func(ctx context.Context, _ *pgx.Conn) error { return hang(stuck, ctx) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stuck atomic.Bool
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { hook(c, &stuck) })
			s := newStore(t, pool, pgtest.Schema(t, pgtest.Pool(t)))
			stuck.Store(true)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
			defer cancel()
			if _, err := link.Dial(ctx, s.Link); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Dial: %v", err)
			}
			if took := time.Since(began); took > pgtest.Patience/2 {
				t.Errorf("Dial took %v", took)
			}
			stuck.Store(false)
		})
	}
}
