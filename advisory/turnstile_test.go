package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// pending is a call of Acquire in a goroutine.
type pending struct {
	cancel context.CancelFunc
	done   chan error
	got    *advisory.Session
}

// later calls Acquire in a goroutine.
func later(t *testing.T, pool *pgxpool.Pool, key advisory.Key, opts ...advisory.SessionOption) *pending {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	p := &pending{cancel: cancel, done: make(chan error, 1)}
	go func() {
		var err error
		p.got, err = advisory.Acquire(ctx, pool, key, append(opts, advisory.WithKeepAliveTimeout(time.Minute))...)
		p.done <- err
	}()
	t.Cleanup(cancel)
	return p
}

// granted waits for the grant and releases the lock.
func (p *pending) granted(t *testing.T) {
	t.Helper()
	if err := <-p.done; err != nil {
		t.Error(err)
		return
	}
	if err := p.got.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// isNext waits until a session holds the turnstile.
func isNext(t *testing.T, direct *pgxpool.Pool, key advisory.Key) {
	t.Helper()
	pgtest.Eventually(t, 30*time.Second, "a session is next", func() bool { return exclusively(t, direct, key.Turnstile()) == 1 })
}

// knowsItIsNext waits until the session that holds the turnstile has tried the lock from there. Before
// that, a lost connection ends Acquire: its caller may not have read the answer.
func knowsItIsNext(t *testing.T, direct *pgxpool.Pool, key advisory.Key) {
	t.Helper()
	classid, objid, objsubid := key.Turnstile().PgLocks()
	pgtest.Eventually(t, 10*time.Second, "the session that is next has tried the lock", func() bool {
		return count(t, direct, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted
			AND mode = 'ExclusiveLock' AND classid = $1 AND objid = $2 AND objsubid = $3 AND query LIKE '%AS tried%'`, classid, objid, objsubid) == 1
	})
}

// exclusively returns how many sessions hold the key exclusively.
func exclusively(t *testing.T, pool *pgxpool.Pool, key advisory.Key) int {
	t.Helper()
	classid, objid, objsubid := key.PgLocks()
	return count(t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
		AND classid = $1 AND objid = $2 AND objsubid = $3
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, classid, objid, objsubid)
}

// TestTurnstile: a waiter that is next keeps later sessions of both kinds out, until it is granted
// the lock or gives up. Then the turnstile is open at once.
func TestTurnstile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	shared := []advisory.SessionOption{advisory.WithShared()}
	for name, kind := range map[string]struct{ holder, waiter []advisory.SessionOption }{
		"a writer behind a reader": {shared, nil},
		"a reader behind a writer": {nil, shared},
	} {
		for _, key := range []advisory.Key{advisory.NewKey("turnstile", name), advisory.KeyFromInt32s(55, int32(len(kind.holder)))} {
			before := acquire(t, pool, key, append(kind.holder, advisory.WithKeepAliveTimeout(time.Minute))...)
			w := later(t, pool, key, kind.waiter...)
			isNext(t, pool, key)
			for what, opts := range map[string][]advisory.SessionOption{"shared": shared, "exclusive": nil} {
				_, err := advisory.TryAcquire(t.Context(), pool, key, opts...)
				var failed *advisory.NotAcquiredError
				if !errors.As(err, &failed) || failed.Cause != nil {
					t.Errorf("%s: a try, %s: %v", name, what, err)
				}
			}
			// A waiter that gives up leaves no lock, not even for a moment.
			w.cancel()
			if err := <-w.done; !isAll(err, advisory.ErrNotAcquired, context.Canceled) {
				t.Errorf("%s, canceled: %v", name, err)
			}
			if n := locksOn(t, pool, key.Turnstile()); n != 0 {
				t.Errorf("%s: %d locks on the turnstile are left", name, n)
			}
			if _, err := advisory.Acquire(t.Context(), pool, key, append(kind.waiter, advisory.WithTimeout(200*time.Millisecond))...); !isAll(err, advisory.ErrNotAcquired, advisory.ErrTimeout) {
				t.Errorf("%s, with a timeout: %v", name, err)
			}
			if n := locksOn(t, pool, key.Turnstile()); n != 0 {
				t.Errorf("%s: %d locks on the turnstile are left", name, n)
			}
			if len(kind.holder) > 0 { // the waiter kept readers out, not the holder
				s, err := advisory.TryAcquire(t.Context(), pool, key, shared...)
				if err != nil {
					t.Fatalf("%s: a reader, once the writer has left: %v", name, err)
				}
				if err := s.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
			w = later(t, pool, key, kind.waiter...)
			isNext(t, pool, key)
			if err := before.Release(t.Context()); err != nil {
				t.Error(err)
			}
			w.granted(t)
			if n := locksOn(t, pool, key.Turnstile()) + locksOn(t, pool, key); n != 0 {
				t.Errorf("%s: %d locks are left", name, n)
			}
		}
	}
	whole(t, pool)
}

// TestI6_WritersWithoutReadersHoldNothing: no waiter holds the turnstile, and no waiter holds a
// connection.
func TestI6_WritersWithoutReadersHoldNothing(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool, sessions := pairPool(t, direct)
	key := advisory.NewKey("turnstile", t.Name())
	before := acquire(t, direct, key)
	var waiters []*pending
	for range 3 {
		waiters = append(waiters, later(t, pool, key))
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		if n := exclusively(t, direct, key.Turnstile()); n != 0 {
			t.Fatal("a writer holds the turnstile behind a writer")
		}
		if n := sessions(); n > 2 {
			t.Fatalf("%d connections", n)
		}
	}
	if err := before.Release(t.Context()); err != nil {
		t.Error(err)
	}
	var all sync.WaitGroup
	for _, w := range waiters { // the order of their grants is not defined
		all.Go(func() { w.granted(t) })
	}
	all.Wait()
}

// TestTurnstileOpensWhenItsHolderIsGone: a waiter that is next and dies, or falls silent, lets
// others pass, and tries again if it can.
func TestTurnstileOpensWhenItsHolderIsGone(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	for name, fault := range map[string]func(*faultproxy.Proxy, advisory.Key){
		"ended": func(_ *faultproxy.Proxy, key advisory.Key) {
			classid, objid, _ := key.Turnstile().PgLocks()
			if n := count(t, direct, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
				WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND mode = 'ExclusiveLock'`, classid, objid); n != 1 {
				t.Errorf("%d were ended", n)
			}
		},
		"silent": func(proxy *faultproxy.Proxy, _ advisory.Key) { proxy.Cut() },
		"reset":  func(proxy *faultproxy.Proxy, _ advisory.Key) { proxy.Sever() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "silent" && count(t, direct, "SELECT current_setting('server_version_num')::int") < 140000 {
				return // before PostgreSQL 14 there is no idle_session_timeout
			}
			proxy, pool := proxied(t)
			if name == "silent" {
				// The fault precedes the answer that the waiter is next.
				proxy.Delay(300 * time.Millisecond)
			}
			key := advisory.NewKey("turnstile", t.Name())
			before := acquire(t, direct, key, advisory.WithShared())
			w := later(t, pool, key)
			isNext(t, direct, key)
			if name != "silent" {
				knowsItIsNext(t, direct, key)
			}
			fault(proxy, key)
			since := time.Now()
			if name == "silent" {
				s, err := advisory.Acquire(soon(t, 20*time.Second), direct, key, advisory.WithShared())
				if err != nil {
					t.Fatalf("a reader, after %v: %v", time.Since(since), err)
				}
				t.Logf("a reader got in after %v", time.Since(since))
				if err := s.Release(t.Context()); err != nil {
					t.Error(err)
				}
				proxy.Heal()
			}
			isNext(t, direct, key) // again
			if err := before.Release(t.Context()); err != nil {
				t.Error(err)
			}
			w.granted(t)
		})
	}
}

// TestTurnstileLeavesNoIdleLimit: the server ends a silent waiter but not a silent holder.
func TestTurnstileLeavesNoIdleLimit(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("turnstile", t.Name())
	before := acquire(t, pool, key, advisory.WithShared(), advisory.WithKeepAliveTimeout(time.Minute))
	w := later(t, pool, key)
	isNext(t, pool, key)
	if err := before.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-w.done; err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.got.Done():
		t.Errorf("lost: %v", w.got.Err())
	case <-time.After(3 * time.Second):
	}
	if err := w.got.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestI9_CancelInTheTurnstile ends the context of a waiter that is next after each of many delays;
// the lock is released half-way through them. Afterwards nothing is locked.
func TestI9_CancelInTheTurnstile(t *testing.T) {
	t.Parallel()
	const delay, steps = 2 * time.Millisecond, 30
	direct := pgtest.Pool(t)
	proxy, pool := proxied(t)
	proxy.Delay(delay)
	for _, shared := range []bool{false, true} {
		key := advisory.NewKey("turnstile", fmt.Sprint(t.Name(), shared))
		holder, waiter := []advisory.SessionOption{advisory.WithShared()}, []advisory.SessionOption(nil)
		if shared {
			holder, waiter = waiter, holder
		}
		outcomes := map[bool]int{}
		for step := range steps {
			before := acquire(t, direct, key, append(holder, advisory.WithKeepAliveTimeout(time.Minute))...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(step+1)*2*delay)
			time.AfterFunc(steps*delay, func() { _ = before.Release(context.Background()) })
			s, err := advisory.Acquire(ctx, pool, key, append(waiter, advisory.WithKeepAliveTimeout(time.Minute))...)
			cancel()
			if err != nil && !isAll(err, advisory.ErrNotAcquired, context.DeadlineExceeded) {
				t.Errorf("step %d: %v", step, err)
			}
			if err == nil {
				err = s.Release(t.Context())
				if err != nil {
					t.Error(err)
				}
			}
			outcomes[err == nil]++
			if err := before.Release(t.Context()); err != nil {
				t.Error(err)
			}
			for _, k := range []advisory.Key{key, key.Turnstile()} {
				pgtest.Eventually(t, 10*time.Second, "nothing is locked", func() bool { return locksOn(t, direct, k) == 0 })
			}
		}
		t.Logf("granted %d times, not granted %d times", outcomes[true], outcomes[false])
	}
	whole(t, pool)
}

// TestTurnstileBesideTransactions: transactions do not use the turnstile. One that queues in the
// server is granted the lock before a session that is next, and both are served.
func TestTurnstileBesideTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("turnstile", t.Name())
	reader := begin(t, pool)
	if err := advisory.LockShared(t.Context(), reader, key); err != nil {
		t.Fatal(err)
	}
	w := later(t, pool, key)
	isNext(t, pool, key)
	another := begin(t, pool)
	if err := advisory.LockShared(t.Context(), another, key); err != nil {
		t.Errorf("a transaction beside one that is next: %v", err)
	}
	queued := begin(t, pool)
	result := make(chan error, 1)
	go func() { result <- advisory.Lock(t.Context(), queued, key) }()
	pgtest.Eventually(t, 10*time.Second, "the transaction waits", func() bool { return waitsFor(t, pool, key) == 1 })
	_, _ = reader.Rollback(t.Context()), another.Rollback(t.Context())
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if n := exclusively(t, pool, key.Turnstile()); n != 1 {
		t.Errorf("%d are next", n)
	}
	if err := queued.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	w.granted(t)
}
