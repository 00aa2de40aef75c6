package link

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestPool is a pool of connections without a client.
type TestPool struct{ p *pool }

// PoolConn is a connection of a TestPool.
type PoolConn = pooledConn

// NewTestPool returns a pool that keeps limit connections, each for lifetime or until it was idle
// for idleTime, or for spareIdle beside another one, which it checks every reapEvery.
func NewTestPool(limit int, lifetime, idleTime, spareIdle, reapEvery time.Duration, dial func(context.Context, time.Duration) (*pgx.Conn, error)) TestPool {
	return TestPool{newPool(context.Background(), limit, poolTimes{lifetime: lifetime, idleTime: idleTime, spareIdle: spareIdle, reapEvery: reapEvery}, dial)}
}

// Acquire acquires a connection.
func (t TestPool) Acquire(ctx context.Context, forRenewal bool) (*PoolConn, error) {
	return t.p.acquire(ctx, forRenewal)
}

// Release returns a connection to the pool.
func (t TestPool) Release(c *PoolConn) { t.p.release(c) }

// Suspect is called when a statement that was sent at that time has timed out, Reset when the
// server has ended a connection.
func (t TestPool) Suspect(sent time.Time) { t.p.suspect(sent) }
func (t TestPool) Reset()                 { t.p.reset() }

// Close closes the pool.
func (t TestPool) Close(ctx context.Context) { t.p.close(ctx) }

// Counts returns the numbers of waiting callers, of dials in flight, and of open connections.
func (t TestPool) Counts() (waiting, dialing, open int) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	return len(t.p.renewals) + len(t.p.others), t.p.dialing, t.p.open
}

// Dial opens a connection like the pool of l, with the application's hooks.
func Dial(ctx context.Context, l *Link) (*pgx.Conn, error) { return l.dial(ctx, 0) }

// Unanswered reports whether a server has accepted a dial that failed, and left it unanswered.
func Unanswered(err error) bool { return errors.As(err, new(unansweredError)) }

// Connect opens a connection like a Link.
func Connect(ctx context.Context, config *pgx.ConnConfig, least time.Duration) (*pgx.Conn, error) {
	return connect(ctx, config, nil, least)
}
