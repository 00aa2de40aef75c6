package link_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// dialer opens connections to the shared server, or hangs until the context ends.
type dialer struct {
	config *pgx.ConnConfig
	dials  atomic.Int64
	hang   atomic.Bool
}

func newDialer(t *testing.T) *dialer {
	t.Helper()
	return &dialer{config: pgtest.Pool(t).Config().ConnConfig}
}

func (d *dialer) dial(ctx context.Context, _ time.Duration) (*pgx.Conn, error) {
	d.dials.Add(1)
	if d.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return pgx.ConnectConfig(ctx, d.config.Copy())
}

// poolOf returns a pool that the test's end closes.
func poolOf(t *testing.T, limit int, dial func(context.Context, time.Duration) (*pgx.Conn, error)) link.TestPool {
	t.Helper()
	p := link.NewTestPool(limit, time.Hour, time.Hour, time.Hour, time.Minute, dial)
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func acquireConn(t *testing.T, p link.TestPool) *link.PoolConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	c, err := p.Acquire(ctx, false)
	if err != nil {
		t.Fatalf("no connection: %v", err)
	}
	return c
}

// acquireLater acquires a connection in the background. It returns when the pool has queued the
// call.
func acquireLater(t *testing.T, p link.TestPool, forRenewal bool) <-chan *link.PoolConn {
	t.Helper()
	before, _, _ := p.Counts()
	got := make(chan *link.PoolConn, 1)
	go func() {
		c, err := p.Acquire(t.Context(), forRenewal)
		if err != nil {
			t.Errorf("no connection: %v", err)
		}
		got <- c
	}()
	pgtest.Eventually(t, "it waits", func() bool { n, _, _ := p.Counts(); return n > before })
	return got
}

// TestPoolReportsNoOldDialFailure: a caller does not get the failure of a dial that began before
// the call. It gets its own dial.
func TestPoolReportsNoOldDialFailure(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	fail := make(chan struct{})
	var first atomic.Bool
	p := poolOf(t, 4, func(ctx context.Context, least time.Duration) (*pgx.Conn, error) {
		if !first.Swap(true) {
			<-fail
			return nil, errors.New("an old failure")
		}
		return d.dial(ctx, least)
	})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, err := p.Acquire(ctx, false); left <- err }()
	pgtest.Eventually(t, "the first dial is in flight", first.Load)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got := acquireLater(t, p, false)
	close(fail)
	if c := <-got; c != nil {
		p.Release(c)
	}
}

// TestPoolChecksWhatWasDialedBeforeAReset: a restart ends a connection that is being opened too.
func TestPoolChecksWhatWasDialedBeforeAReset(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	admin := pgtest.Pool(t)
	opened, proceed := make(chan uint32, 1), make(chan struct{})
	var one atomic.Bool
	p := poolOf(t, 4, func(ctx context.Context, least time.Duration) (*pgx.Conn, error) {
		conn, err := d.dial(ctx, least)
		if err != nil || !one.CompareAndSwap(false, true) { // on a slow machine the pool dials two at once
			return conn, err
		}
		opened <- conn.PgConn().PID()
		<-proceed
		return conn, nil
	})
	got := acquireLater(t, p, false)
	pid := <-opened
	pgtest.Eventually(t, "the server has ended it", func() bool {
		var there int
		err := admin.QueryRow(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&there)
		return err == nil && there == 0
	})
	p.Reset()
	close(proceed)
	if c := <-got; c != nil {
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("a caller got a connection that the server has ended: %v", err)
		}
		p.Release(c)
	}
}

// TestPoolServesRenewalsFirst: while a dial hangs, a returned connection goes to a renewal first,
// and then to the others.
func TestPoolServesRenewalsFirst(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	p := poolOf(t, 4, d.dial)
	only := acquireConn(t, p)
	d.hang.Store(true)
	other := acquireLater(t, p, false)
	renewal := acquireLater(t, p, true)
	p.Release(only)
	select {
	case c := <-renewal:
		if c != only {
			t.Error("the renewal got another connection")
		}
		p.Release(c)
	case <-other:
		t.Error("another caller was served before a renewal")
	case <-time.After(pgtest.Patience):
		t.Fatal("nobody got the connection that was returned")
	}
	select {
	case c := <-other:
		p.Release(c)
	case <-time.After(pgtest.Patience):
		t.Fatal("the other caller waits for its dial, though a connection is idle")
	}
}

// TestPoolDialsAgainWhenADialHangs: the pool does not wait for it, and bounds the number of dials.
func TestPoolDialsAgainWhenADialHangs(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	p := poolOf(t, 4, d.dial)
	d.hang.Store(true)
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := p.Acquire(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while all dials hang: %v", err)
		}
		cancel()
	}
	if n := d.dials.Load(); n > 8 {
		t.Errorf("%d dials for callers that came one by one", n)
	}
	small := poolOf(t, 1, d.dial)
	before := d.dials.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
	defer cancel()
	if _, err := small.Acquire(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while all dials hang: %v", err)
	}
	if n := d.dials.Load() - before; n != 2 {
		t.Errorf("%d dials for one caller, want one and its company", n)
	}
	d.hang.Store(false)
	began := time.Now()
	p.Release(acquireConn(t, p))
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a connection came after %v", took)
	}
}

// TestPoolReportsWhyADialFailed checks that it does so at once, and closes a dialed connection that
// no caller waits for.
func TestPoolReportsWhyADialFailed(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	d := newDialer(t)
	var fail atomic.Bool
	fail.Store(true)
	p := poolOf(t, 2, func(ctx context.Context, least time.Duration) (*pgx.Conn, error) {
		if fail.Load() {
			return nil, refused
		}
		return d.dial(ctx, least)
	})
	if _, err := p.Acquire(t.Context(), false); !errors.Is(err, refused) {
		t.Errorf("want the dial's error, got %v", err)
	}
	fail.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = p.Acquire(ctx, false)
	pgtest.Eventually(t, "the dial ends", func() bool { _, dialing, open := p.Counts(); return dialing == 0 && open == 1 })
	dials := d.dials.Load()
	p.Release(acquireConn(t, p))
	if d.dials.Load() != dials {
		t.Error("a connection that nobody waited for was not kept")
	}
}

// TestPoolPausesAfterARejectedLogin: however many callers there are, the logins are few, because
// many servers lock an account after some of them. Each caller is told, and once a login is
// accepted all go on.
func TestPoolPausesAfterARejectedLogin(t *testing.T) {
	t.Parallel()
	var logins pgtest.Logins
	logins.Rejecting.Store(true)
	var mu sync.Mutex
	var last time.Time // guarded by mu
	var n, alone int   // guarded by mu; the logins, and those with a pause before them
	d := newDialer(t)
	d.config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) >= timing.LoginPause/2 {
			alone++
		}
		n, last = n+1, time.Now()
		return logins.Validate(ctx, conn)
	}
	p := poolOf(t, 2, d.dial)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 7 { // the first four logins answer four calls of each
				if _, err := p.Acquire(ctx, false); !pgtx.LoginRejected(err) {
					t.Errorf("a caller was told %v", err)
				}
			}
		})
	}
	all.Wait()
	// Four begin at once, the pool's limit, and each one after them and the next has a pause before
	// it.
	if mu.Lock(); n < 3 || n > alone+4 {
		t.Errorf("%d logins for 140 calls, of which %d had a pause before them", n, alone)
	}
	mu.Unlock()
	short, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	if _, err := p.Acquire(short, false); !pgtx.LoginRejected(err) {
		t.Errorf("a caller whose time was over in the pause was told %v", err)
	}
	logins.Rejecting.Store(false)
	one, other := acquireConn(t, p), acquireConn(t, p)
	p.Release(one)
	p.Release(other)
}

// TestPoolPingsWhatItSuspects: the network has dropped one of two idle connections. After a
// time-out only the other one is used again.
func TestPoolPingsWhatItSuspects(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	proxy := faultproxy.New(t, address(d.config))
	straight := d.config.Copy()
	through := via(t, d.config, proxy)
	var first atomic.Bool
	first.Store(true)
	p := poolOf(t, 4, func(ctx context.Context, _ time.Duration) (*pgx.Conn, error) {
		if first.CompareAndSwap(true, false) {
			return pgx.ConnectConfig(ctx, through.Copy())
		}
		d.dials.Add(1)
		return pgx.ConnectConfig(ctx, straight.Copy())
	})
	dead := acquireConn(t, p)
	alive := acquireConn(t, p)
	p.Release(alive)
	p.Release(dead)
	proxy.Freeze(true)
	p.Suspect(time.Now())
	got := acquireConn(t, p) // the one that answers, or a new one
	if got == dead {
		t.Error("a connection that did not answer was used")
	}
	p.Release(got)
	var before int
	pgtest.Eventually(t, "no dial is in flight", func() bool {
		_, dialing, open := p.Counts()
		before = open
		return dialing == 0
	})
	pgtest.Eventually(t, "the dead one is closed", func() bool { _, _, open := p.Counts(); return open < before })
	if alive.IsClosed() {
		t.Error("a connection that answers was closed")
	}
	// Connections that have answered since then are not suspected.
	since := time.Now()
	c := acquireConn(t, p)
	p.Release(c)
	p.Suspect(since)
	if again := acquireConn(t, p); again != c {
		t.Error("a connection that has answered since was suspected")
	} else {
		p.Release(again)
	}
	proxy.Sever() // so that the end does not wait for the dead one
}

// TestPoolResets closes idle connections at once, and the others when they are returned.
func TestPoolResets(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	p := poolOf(t, 4, d.dial)
	used, idle := acquireConn(t, p), acquireConn(t, p)
	p.Release(idle)
	p.Reset()
	p.Release(used)
	if _, _, open := p.Counts(); open != 0 {
		t.Errorf("%d connections are open after a reset", open)
	}
	c := acquireConn(t, p)
	if c == used || c == idle {
		t.Error("a connection from before the reset was used")
	}
	p.Release(c)
}

// TestPoolKeepsOneConnectionOfABurst closes the others when they have been idle for a while.
func TestPoolKeepsOneConnectionOfABurst(t *testing.T) {
	t.Parallel()
	p := link.NewTestPool(4, 0, time.Hour, 100*time.Millisecond, 50*time.Millisecond, newDialer(t).dial)
	defer p.Close(t.Context())
	var all []*link.PoolConn
	for range 4 {
		all = append(all, acquireConn(t, p))
	}
	for _, c := range all {
		p.Release(c)
	}
	pgtest.Eventually(t, "one is left", func() bool { _, _, open := p.Counts(); return open == 1 })
	if c := acquireConn(t, p); c != all[3] {
		t.Error("the connection that is left is not the one that was used last")
	} else {
		p.Release(c)
	}
}

// TestPoolClosesOldConnections checks the times of the application's pool and the limit.
func TestPoolClosesOldConnections(t *testing.T) {
	t.Parallel()
	d := newDialer(t)
	for name, p := range map[string]link.TestPool{
		"lifetime": link.NewTestPool(4, 100*time.Millisecond, time.Hour, time.Hour, 50*time.Millisecond, d.dial),
		"idle":     link.NewTestPool(4, 0, 100*time.Millisecond, time.Hour, 50*time.Millisecond, d.dial),
	} {
		p.Release(acquireConn(t, p))
		pgtest.Eventually(t, name+": the connection is closed", func() bool { _, _, open := p.Counts(); return open == 0 })
		p.Release(acquireConn(t, p))
		p.Close(t.Context())
		if _, err := p.Acquire(t.Context(), false); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("%s: after Close: %v", name, err)
		}
	}
	p := poolOf(t, 2, d.dial)
	var all []*link.PoolConn
	for range 5 {
		all = append(all, acquireConn(t, p))
	}
	for _, c := range all {
		p.Release(c)
	}
	if _, _, open := p.Counts(); open != 2 {
		t.Errorf("%d connections are kept, the limit is 2", open)
	}
}
