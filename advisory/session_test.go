package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// acquire returns a session lock that the test's end releases.
func acquire(t *testing.T, pool *pgxpool.Pool, key advisory.Key, opts ...advisory.SessionOption) *advisory.Session {
	t.Helper()
	s, err := advisory.Acquire(soon(t, time.Minute), pool, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Release(context.Background()) })
	return s
}

// lost waits for the loss of s and returns how long that took.
func lost(t *testing.T, s *advisory.Session, since time.Time) time.Duration {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the loss was not noticed")
	}
	took := time.Since(since)
	var why *advisory.LostError
	if err := s.Err(); !errors.Is(err, advisory.ErrLost) || !errors.As(err, &why) || why.PID != s.PID() || !errors.Is(context.Cause(s.Context()), advisory.ErrLost) {
		t.Errorf("Err: %v", err)
	}
	return took
}

func TestSessionExcludes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, key := range []advisory.Key{advisory.NewKey("session", t.Name()), advisory.KeyFromInt32s(2001, -1)} {
		type value struct{}
		s := acquire(t, pool, key)
		if s.Key() != key || s.PID() == 0 || s.Err() != nil {
			t.Error(s.Key(), s.PID(), s.Err())
		}
		if n := locksOn(t, pool, key); n != 1 {
			t.Errorf("%d locks", n)
		}
		for what, err := range map[string]error{
			"a session":     second(advisory.TryAcquire(t.Context(), pool, key)),
			"a transaction": advisory.TryLock(t.Context(), begin(t, pool), key),
			"in time": second(advisory.Acquire(t.Context(), pool, key,
				advisory.WithTimeout(50*time.Millisecond))),
			"by ctx": second(advisory.Acquire(soon(t, 50*time.Millisecond), pool, key)),
		} {
			if !errors.Is(err, advisory.ErrNotAcquired) || errors.Is(err, advisory.ErrTimeout) != (what == "in time") ||
				errors.Is(err, context.DeadlineExceeded) != (what == "by ctx") {
				t.Errorf("%s, beside the holder: %v", what, err)
			}
		}
		for range 2 {
			if err := s.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if err := s.Err(); !errors.Is(err, advisory.ErrReleased) || errors.Is(err, advisory.ErrLost) {
			t.Errorf("Err: %v", err)
		}
		if n := locksOn(t, pool, key); n != 0 {
			t.Errorf("after the release: %d locks", n)
		}
		again, err := advisory.TryAcquire(context.WithValue(t.Context(), value{}, "v"), pool, key)
		if err != nil {
			t.Fatal(err)
		}
		if again.Context().Value(value{}) != "v" {
			t.Error("the context lacks the caller's values")
		}
		if err := again.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestSessionShared(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("session", t.Name())
	one := acquire(t, pool, key, advisory.WithShared())
	two := acquire(t, pool, key, advisory.WithShared())
	if _, err := advisory.TryAcquire(t.Context(), pool, key); !errors.Is(err, advisory.ErrNotAcquired) {
		t.Errorf("exclusive beside shared: %v", err)
	}
	for _, s := range []*advisory.Session{one, two} {
		if err := s.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	exclusive, err := advisory.TryAcquire(t.Context(), pool, key)
	if err != nil {
		t.Fatalf("exclusive after shared: %v", err)
	}
	if err := exclusive.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestI8_SessionOutlivesTheContext: ctx bounds acquiring only.
func TestI8_SessionOutlivesTheContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := advisory.Acquire(ctx, pool, advisory.NewKey("session", t.Name()), advisory.WithNotice(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-s.Done():
		t.Errorf("lost with the caller's context: %v", s.Err())
	case <-time.After(time.Second):
	}
	done, giveUp := context.WithCancel(t.Context())
	giveUp()
	if err := s.Release(done); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Release: %v", err)
	}
	if err := s.Release(t.Context()); err != nil {
		t.Errorf("Release went on without its first caller: %v", err)
	}
}

// TestP37_SamePooledSession: a pooled connection on which somebody has left a session lock behind does not
// grant it once more, nor does it pass on the lock to the pool's next user.
func TestP37_SamePooledSession(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	key := advisory.KeyFromInt64(37_37_37)
	if _, err := pool.Exec(t.Context(), "SELECT pg_advisory_lock(373737), pg_advisory_lock(373737)"); err != nil {
		t.Fatal(err)
	}
	s := acquire(t, pool, key)
	if err := s.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if n := locksOn(t, pool, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// TestP36_SessionNoticesTheEnd: within a second the holder knows that its backend was ended, or its connection cut, or its
// server has stopped.
func TestP36_SessionNoticesTheEnd(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	direct := pgtest.PoolOn(t, server.URL())
	proxy := faultproxy.New(t, address(direct))
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
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := server.Resume(); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		key := advisory.NewKey("session", t.Name()+name)
		s := acquire(t, pool, key)
		since := time.Now()
		mend := fault(s)
		took := lost(t, s, since)
		t.Logf("%s: noticed after %v: %v", name, took, s.Err())
		if took > 3*time.Second { // two of them for a busy machine
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
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestP36_NothingSleepsInTheServer: whenever one looks, the holder's session is idle or just answering.
func TestP36_NothingSleepsInTheServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := acquire(t, pool, advisory.NewKey("session", t.Name()), advisory.WithNotice(4*time.Second))
	deadline := time.After(2 * time.Second)
	for {
		if n := count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle' AND clock_timestamp() - query_start > '800 ms'", s.PID()); n > 0 {
			t.Fatal("a statement of the session's runs for longer than a moment")
		}
		select {
		case <-deadline:
			return
		default:
		}
	}
}

// TestSessionKeepAlive: the server is told to look after a client that is gone.
func TestSessionKeepAlive(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := advisory.KeepAlive(t.Context(), conn.Conn()); err != nil {
		t.Fatal(err)
	}
	if pool.Config().ConnConfig.Host[0] == '/' {
		t.Fatal("this needs a TCP connection")
	}
	for name, want := range map[string]string{"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "11000"} {
		var got string
		if err := conn.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = $1", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %s, %v", name, got, err)
		}
	}
}

// TestP28_ReleaseChecksTheAnswer: a session that did not hold the lock any more says so.
func TestP28_ReleaseChecksTheAnswer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := acquire(t, pool, advisory.NewKey("session", t.Name()))
	if err := advisory.Forget(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context()); !errors.Is(err, advisory.ErrLost) {
		t.Errorf("Release: %v", err)
	}
}

// TestI6_SessionWaitersHoldNothing: a crowd that waits leaves the pool to others, and each gets its turn.
func TestI6_SessionWaitersHoldNothing(t *testing.T) {
	t.Parallel()
	const waiters = 30
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	key := advisory.NewKey("session", t.Name())
	first := acquire(t, pool, key)
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			s, err := advisory.Acquire(soon(t, time.Minute), pool, key)
			if err == nil {
				err = s.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range 50 {
		if err := pool.Ping(soon(t, 5*time.Second)); err != nil {
			t.Fatalf("the pool, with %d waiters: %v", waiters, err)
		}
	}
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	all.Wait()
	whole(t, pool)
}

func TestSessionInvalidOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for what, option := range map[string]advisory.SessionOption{
		"time-out": advisory.WithTimeout(-time.Second), "pool": advisory.WithPoolWait(-1), "notice": advisory.WithNotice(99 * time.Millisecond),
	} {
		if _, err := advisory.Acquire(t.Context(), pool, advisory.NewKey("session", t.Name()), option); !errors.Is(err, advisory.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := advisory.TryAcquire(t.Context(), nil, advisory.NewKey("session", t.Name())); !errors.Is(err, advisory.ErrInvalidOption) {
		t.Errorf("no pool: %v", err)
	}
}

// address returns host and port of the pool's server.
func address(pool *pgxpool.Pool) string {
	server := pool.Config().ConnConfig
	return net.JoinHostPort(server.Host, fmt.Sprint(server.Port))
}
