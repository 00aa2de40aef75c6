package advisory_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestSessionWithACancellingPool: on a pool that answers a context's end with a request to cancel, and gives the
// server a minute to obey, a session lock is released and its loss noticed as soon as on others.
func TestSessionWithACancellingPool(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, address(pgtest.Pool(t)))
	pool := pgtest.PoolOn(t, proxy.URL(pgtest.URL(t)), func(c *pgxpool.Config) {
		c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	})
	key := advisory.NewKey("handler", t.Name())
	s, err := advisory.Acquire(t.Context(), pool, key, advisory.WithNotice(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(soon(t, 20*time.Second)); err != nil {
		t.Errorf("release: %v", err)
	}
	s, err = advisory.Acquire(t.Context(), pool, key, advisory.WithNotice(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	select {
	case <-s.Done():
	case <-time.After(20 * time.Second):
		t.Error("the silent server was not noticed")
	}
	proxy.Heal()
	proxy.Sever()
	_ = s.Release(t.Context()) // lost, or still to be
}
