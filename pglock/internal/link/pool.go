package link

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
)

// pool keeps the client's connections. pgxpool was tried instead. There, a caller that dials waits
// for its own dial even while another connection is returned, and each canceled call leaves one
// more dial behind: with a TTL of 3 s and a round trip of 900 ms, 26 connections instead of 8. This
// pool differs during an outage:
//
//   - A waiting caller gets the first connection that is ready, returned or new. Renewals are
//     served first.
//   - Dials are bounded in time and in number, and don't depend on the caller that needed them. If
//     all dials are slow, another one is started, so that a hung dial delays no caller for long.
//   - A server that accepts connections and answers none in time is busy with those that its clients
//     have given up: dials become fewer and more patient until it answers one.
//   - After a statement times out, the pool pings the connections that have not answered since,
//     before it uses them again. A slow server loses no connection. Of many dead connections, only
//     the first costs a time-out.
//   - After a rejected login, which many servers count until they lock the account, the next one comes
//     after a pause and alone. All callers that wait for it get its answer.
//
// The pool does not limit the connections in use. Its callers do: see connections.
type pool struct {
	dial   dialFunc
	limit  int // of connections that are kept
	config poolTimes

	ctx     context.Context //nolint:containedctx // of the pool: ends dials and pings
	cancel  context.CancelFunc
	running sync.WaitGroup // dials, pings, and connections being closed

	mu       sync.Mutex    // guards the fields below; no I/O under it
	idle     []*pooledConn // the last used one at the end
	renewals []*connWaiter // waiting, oldest first
	others   []*connWaiter // waiting, oldest first
	dialing  int           // dials in flight
	prompt   int           // of these, those that are not slow yet
	open     int           // open connections, idle or not, except those being closed
	resets   int           // a connection that was opened before the last reset is not used again
	latency  time.Duration
	reaper   *time.Timer // runs reap, or nil
	closed   bool

	// The longest dial since the last answered one that the server has accepted and left unanswered, at
	// most timing.MaxConnectBound; 0 without one.
	unanswered time.Duration

	rejected error           // of the last login; nil: it was accepted
	loginAt  time.Time       // no login begins before that
	logins   backoff.Backoff // pauses between rejected ones
}

// dialFunc opens a connection. It has its own time limit, which is no shorter than least unless the
// application has set one.
type dialFunc func(ctx context.Context, least time.Duration) (*pgx.Conn, error)

// poolTimes are settings of the application's pool that apply here too, and timing.SpareIdle.
type poolTimes struct {
	lifetime, lifetimeJitter, idleTime, reapEvery, spareIdle time.Duration
}

// pooledConn is a connection of the pool.
type pooledConn struct {
	*pgx.Conn
	resets   int
	expires  time.Time // end of its lifetime, or zero
	answered time.Time // when it was last returned in good condition
}

// connWaiter is a caller that waits for a connection.
type connWaiter struct {
	since time.Time
	ready chan connResult // buffer of one
}

type connResult struct {
	conn *pooledConn
	err  error
}

func newPool(life context.Context, limit int, config poolTimes, dial dialFunc) *pool {
	p := &pool{dial: dial, limit: limit, config: config, logins: backoff.Backoff{First: timing.LoginPause, Max: timing.MaxLoginPause}}
	p.ctx, p.cancel = context.WithCancel(life)
	return p
}

// acquire returns a connection, which the caller must release. If it has to wait, it fails when ctx
// ends or a dial fails.
func (p *pool) acquire(ctx context.Context, forRenewal bool) (*pooledConn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errs.ErrClosed
	}
	if c := p.popIdle(); c != nil {
		p.mu.Unlock()
		return c, nil
	}
	t := &connWaiter{since: time.Now(), ready: make(chan connResult, 1)}
	queue := &p.others
	if forRenewal {
		queue = &p.renewals
	}
	*queue = append(*queue, t)
	p.dialMore()
	p.mu.Unlock()

	// Both may be ready. A connection that arrives with the end of ctx goes back to the pool.
	select {
	case got := <-t.ready:
		return got.conn, got.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(*queue, t); i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	} else if got := <-t.ready; got.conn != nil { // served before mu was locked
		p.put(got.conn)
	}
	if p.rejected != nil { // that is why the caller had to wait
		return nil, p.rejected
	}
	return nil, UnsentError{context.Cause(ctx)}
}

// release returns a connection to the pool, which closes it unless its state is known to be good.
func (p *pool) release(c *pooledConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.IsClosed() || c.PgConn().IsBusy() || c.PgConn().TxStatus() != 'I' {
		p.discard(c)
		return
	}
	c.answered = time.Now()
	p.put(c)
}

// reset closes the idle connections at once, and the others when they are returned. It is called
// when the server has ended a connection: a restart or failover ends the others too.
func (p *pool) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets++
	for _, c := range p.idle {
		p.discard(c)
	}
	p.idle = nil
}

// suspect is Link.Suspect.
func (p *pool) suspect(since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(c *pooledConn) bool {
		if c.answered.After(since) {
			return false
		}
		p.running.Go(func() { p.runPing(c) })
		return true
	})
}

func (p *pool) runPing(c *pooledConn) {
	ctx, cancel := context.WithTimeout(p.ctx, timing.StatementBound)
	defer cancel()
	_ = c.Ping(ctx) // closes it on failure
	p.release(c)
}

// close closes the pool. No connection is in use. It returns when all are closed or ctx is done.
// Connections that can't be closed properly end a few seconds later.
func (p *pool) close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.idle {
		p.discard(c)
	}
	p.idle = nil
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	p.cancel()
	closed := make(chan struct{})
	go func() { p.running.Wait(); close(closed) }()
	select { // either is right: the caller does not use the pool any more
	case <-closed:
	case <-ctx.Done():
	}
}

// popIdle returns an idle connection, or nil. The caller holds mu.
func (p *pool) popIdle() *pooledConn {
	for len(p.idle) > 0 {
		last := len(p.idle) - 1
		c := p.idle[last]
		p.idle[last], p.idle = nil, p.idle[:last]
		if !c.expired(time.Now()) {
			return c
		}
		p.discard(c)
	}
	return nil
}

// put gives c to the next waiting caller, or keeps it. The caller holds mu.
func (p *pool) put(c *pooledConn) {
	if p.closed || c.resets != p.resets || c.expired(time.Now()) {
		p.discard(c)
		return
	}
	if t := p.popWaiter(time.Now()); t != nil {
		t.ready <- connResult{conn: c}
		return
	}
	if p.open > p.limit { // more dials than needed have succeeded
		p.discard(c)
		return
	}
	p.idle = append(p.idle, c)
	p.scheduleReap()
}

// popWaiter removes and returns the first caller that waits since then or longer, renewals first.
// It returns nil if there is none. The caller holds mu.
func (p *pool) popWaiter(then time.Time) *connWaiter {
	for _, queue := range []*[]*connWaiter{&p.renewals, &p.others} {
		if len(*queue) > 0 && !(*queue)[0].since.After(then) {
			t := (*queue)[0]
			*queue = slices.Delete(*queue, 0, 1)
			return t
		}
	}
	return nil
}

// dialMore starts dials for the waiting callers, or one if the server has answered none lately, and
// one more if all dials are slow. The caller holds mu.
func (p *pool) dialMore() {
	waiting := len(p.renewals) + len(p.others)
	for !p.closed && waiting > 0 && (p.prompt == 0 || p.dialing < waiting && p.unanswered == 0) && p.dialing < 2*p.limit &&
		(p.rejected == nil || p.dialing == 0 && !time.Now().Before(p.loginAt)) {
		p.dialing++
		p.prompt++
		p.running.Go(p.runDial)
	}
}

// leastBound returns the shortest time limit of the next dial for each host: twice the time of the
// longest one that the server has left unanswered.
func (p *pool) leastBound() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(2*p.unanswered, timing.MaxConnectBound)
}

func (p *pool) runDial() {
	began := time.Now()
	prompt := true // guarded by mu
	markSlow := func() {
		if prompt {
			prompt = false
			p.prompt--
		}
	}
	p.mu.Lock()
	unusual, resets := max(timing.DialPatience, 2*p.latency, p.unanswered/3), p.resets
	p.mu.Unlock()
	timer := time.AfterFunc(backoff.Jitter(2*unusual), func() { // at random, because a fleet may connect at once
		p.mu.Lock()
		defer p.mu.Unlock()
		markSlow()
		p.dialMore()
	})
	conn, err := p.dial(p.ctx, p.leastBound())
	timer.Stop()

	p.mu.Lock()
	defer p.mu.Unlock()
	markSlow()
	p.dialing--
	if errors.As(err, new(unansweredError)) {
		p.unanswered = max(p.unanswered, min(time.Since(began), timing.MaxConnectBound))
	}
	switch {
	case err == nil:
		p.rejected = nil
		p.logins.Reset()
		p.latency, p.unanswered = time.Since(began), 0
		p.open++
		c := &pooledConn{Conn: conn, resets: p.resets, answered: time.Now()}
		if p.config.lifetime > 0 {
			c.expires = time.Now().Add(p.config.lifetime + random.N(p.config.lifetimeJitter+1))
		}
		if resets == p.resets {
			p.put(c)
		} else { // it may be one of those that the server has ended
			p.running.Go(func() { p.runPing(c) })
		}
	case pgtx.LoginRejected(err):
		p.rejectLogin(began, err)
	case p.dialing < len(p.renewals)+len(p.others): // otherwise another dial may succeed
		// A caller that came after this dial began gets its own dial: the server may have come
		// back in between.
		if t := p.popWaiter(began); t != nil {
			t.ready <- connResult{err: err}
		}
	}
	p.dialMore()
}

// rejectLogin begins the pause after a rejected login, whose error all waiting callers get. Dials
// that began together with the first rejected one count as one. The caller holds mu.
func (p *pool) rejectLogin(began time.Time, err error) {
	p.rejected = err
	if !began.Before(p.loginAt) {
		pause := p.logins.Next()
		p.loginAt = time.Now().Add(pause)
		time.AfterFunc(pause, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.dialMore() // for callers that wait by then
		})
	}
	for t := p.popWaiter(time.Now()); t != nil; t = p.popWaiter(time.Now()) {
		t.ready <- connResult{err: err}
	}
}

// discard closes c in the background. The caller holds mu.
func (p *pool) discard(c *pooledConn) {
	p.open--
	p.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timing.ConnCloseBound)
		defer cancel()
		_ = c.Close(ctx)
		select { // ctx only bounds the wait
		case <-c.PgConn().CleanupDone():
		case <-ctx.Done():
		}
	})
}

func (c *pooledConn) expired(now time.Time) bool { return !c.expires.IsZero() && now.After(c.expires) }

// scheduleReap sets the timer that closes idle connections. The caller holds mu.
func (p *pool) scheduleReap() {
	if p.reaper == nil && !p.closed && p.config.reapEvery > 0 {
		p.reaper = time.AfterFunc(min(p.config.reapEvery, p.config.spareIdle/2), p.reap)
	}
}

// reap closes connections that are too old or have been idle for too long: the last used one by the
// setting of the application's pool, and the others soon, because a fleet of clients would hold all
// that their bursts have opened.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaper = nil
	now := time.Now()
	var last *pooledConn
	if n := len(p.idle); n > 0 {
		last = p.idle[n-1]
	}
	p.idle = slices.DeleteFunc(p.idle, func(c *pooledConn) bool {
		idle := now.Sub(c.answered)
		old := c.expired(now) || idle > p.config.idleTime || c != last && idle > p.config.spareIdle
		if old {
			p.discard(c)
		}
		return old
	})
	if len(p.idle) > 0 {
		p.scheduleReap()
	}
}
