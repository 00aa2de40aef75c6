package advisory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestP36_SessionNoticesTheEnd: the holder learns within a second that its backend was terminated,
// its connection was cut, or its server has stopped.
func TestP36_SessionNoticesTheEnd(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	direct := pgtest.PoolOn(t, server.URL())
	proxy := faultproxy.New(t, address(t, server.URL()))
	pool := pgtest.PoolOn(t, proxy.URL(server.URL()))
	for name, fault := range map[string]func(s *advisory.Session) (mend func()){
		"backend ended": func(s *advisory.Session) func() {
			if _, err := direct.Exec(t.Context(), "SELECT pg_terminate_backend($1)", s.PID()); err != nil {
				t.Fatal(err)
			}
			return func() {}
		},
		"connection reset": func(*advisory.Session) func() { proxy.Sever(); return func() {} },
		"network cut":      func(*advisory.Session) func() { proxy.Cut(); return proxy.Heal },
		"server stopped": func(*advisory.Session) func() {
			ok(t, server.Pause())
			return func() {
				ok(t, server.Resume())
			}
		},
	} {
		key := advisory.NewKey("session", t.Name()+name)
		s := acquire(t, pool, key)
		since := time.Now()
		mend := fault(s)
		took := lost(t, s, since)
		t.Logf("%s: noticed after %v: %v", name, took, s.Err())
		if took > 15*time.Second { // the keep-alive timeout is 500 ms; TCP alone needs minutes
			t.Errorf("%s: noticed after %v", name, took)
		}
		mend()
		if err := s.Release(t.Context()); !errors.Is(err, advisory.ErrLost) {
			t.Errorf("%s: Release: %v", name, err)
		}
		next, err := advisory.Acquire(soon(t, 30*time.Second), direct, key)
		if err != nil {
			t.Errorf("%s: the next holder: %v", name, err)
			continue
		}
		ok(t, next.Release(t.Context()))
	}
}

// TestP36_NothingSleepsInTheServer: at every moment the holder's session is idle or answers a
// probe.
func TestP36_NothingSleepsInTheServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := acquire(t, pool, advisory.NewKey("session", t.Name()), advisory.WithKeepAliveTimeout(4*time.Second))
	for range 2 {
		probed(t, pool, s)
		if n := count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle' AND clock_timestamp() - query_start > '800 ms'", s.PID()); n > 0 {
			t.Fatal("a statement of the session's runs for longer than a moment")
		}
	}
}

// TestSessionKeepAlive: the session's settings make the server detect a client that is gone, and
// never end a session that only holds its lock.
func TestSessionKeepAlive(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if pool.Config().ConnConfig.Host[0] == '/' {
		t.Fatal("this needs a TCP connection")
	}
	s := acquire(t, pool, advisory.NewKey("session", t.Name()), advisory.WithKeepAliveTimeout(time.Minute))
	want := map[string]string{"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "11000", "idle_session_timeout": "0"}
	if count(t, pool, "SELECT current_setting('server_version_num')::int") < 140000 {
		want["idle_session_timeout"] = ""
	}
	for name, value := range want {
		if got, err := advisory.Setting(t.Context(), s, name); err != nil || got != value {
			t.Errorf("%s is %s, %v", name, got, err)
		}
	}
}

// TestSessionWithACancelRequestHandler: a pool whose context watcher sends a request to cancel, and
// gives the server a minute to obey, delays neither the release of a session lock nor the notice of
// its loss.
func TestSessionWithACancelRequestHandler(t *testing.T) {
	t.Parallel()
	proxy, pool := proxied(t, func(c *pgxpool.Config) {
		c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	})
	key := advisory.NewKey("handler", t.Name())
	s, err := advisory.Acquire(t.Context(), pool, key, advisory.WithKeepAliveTimeout(4*time.Second))
	ok(t, err)
	if err := s.Release(soon(t, 20*time.Second)); err != nil {
		t.Errorf("release: %v", err)
	}
	s, err = advisory.Acquire(t.Context(), pool, key, advisory.WithKeepAliveTimeout(4*time.Second))
	ok(t, err)
	proxy.Cut()
	locktest.Receive(t, s.Context().Done()) // sooner than the minute of the handler
	proxy.Heal()
	proxy.Sever()
	_ = s.Release(t.Context()) // lost already, or about to be lost
}
