// Package link sends the statements of a client on connections of its own.
//
// Every new connection is checked: the version of the schema, whether the server accepts writes,
// and whether it knows the tokens that this client has seen (server.go). A commit whose wait for a
// synchronous standby was canceled counts as unanswered (durable.go).
package link

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
)

// MaxRenewals is the number of renewal statements in progress for which connections are kept.
const MaxRenewals = 2

// Config configures a Link.
type Config struct {
	Schema   string
	MaxConns int             // one of them is kept for renewals
	Listener *pgx.ConnConfig // of the listening connection; nil: that of the pool
	Standby  bool            // a server that accepts no writes is used too
	Logger   *slog.Logger
	Holder   string // the client's name in its leases
}

// Link is the Sender of a client. It has connections of its own, because the application's pool may
// be held by callers that wait for the lock that is to be released. A Link is safe for concurrent
// use.
type Link struct {
	pool     *pool
	config   *pgxpool.Config // of new connections
	listener *pgx.ConnConfig
	schema   string
	standby  bool // of Config
	logger   *slog.Logger
	life     context.Context //nolint:containedctx // of the client: its end ends every statement

	// slots bounds the statements in progress, except renewals. Renewals have their own bounds, so
	// nothing can starve them.
	slots chan struct{}

	latency, renewPace latency // of other statements and of renewals

	highWater highWater
	notify    notifications
}

// New returns a Link to the database of p, a copy of the configuration of the application's pool,
// which it changes. It opens no connection. The end of life ends every statement. Close the Link.
func New(life context.Context, p *pgxpool.Config, cfg Config) *Link {
	l := &Link{
		config: p, listener: cfg.Listener, schema: cfg.Schema, standby: cfg.Standby, logger: cfg.Logger,
		life: life, slots: make(chan struct{}, cfg.MaxConns-1),
	}
	// A pooler in transaction mode may deliver a listener's notification here. pgx would collect
	// it.
	p.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	p.ConnConfig.OnNotice = noticeUnconfirmed(p.ConnConfig.OnNotice)
	p.ConnConfig.ValidateConnect = l.rejectOldServers(p.ConnConfig.ValidateConnect)
	p.ConnConfig.RuntimeParams["application_name"] = schema.ApplicationName(p.ConnConfig.RuntimeParams["application_name"], cfg.Holder)
	l.pool = newPool(life, l.Slots()+MaxRenewals, poolTimes{
		lifetime: p.MaxConnLifetime, lifetimeJitter: p.MaxConnLifetimeJitter,
		idleTime: p.MaxConnIdleTime, reapEvery: p.HealthCheckPeriod, spareIdle: timing.SpareIdle,
	}, l.dial)
	return l
}

// ObserveGrant tells l of a durable grant: a server that has not handed out its token is an old
// one.
func (l *Link) ObserveGrant(grant fencing.Fence) { l.highWater.observeGrant(grant.Name, grant.Token) }

// Check opens the first connection, with the checks that every new connection makes.
func (l *Link) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*timing.StatementBound)
	defer cancel()
	conn, err := l.pool.acquire(ctx, false)
	if err != nil {
		return l.Explain("open", err)
	}
	l.pool.release(conn)
	return nil
}

// Close closes the connections, of which none is in use, and returns when that is done or ctx ends.
func (l *Link) Close(ctx context.Context) { l.pool.close(ctx) }

// Database identifies the schema and its database: clients of others share no locks.
func (l *Link) Database() string {
	c := l.config.ConnConfig
	return fmt.Sprintf("%s:%d %q %q", c.Host, c.Port, c.Database, l.schema)
}

// Slots returns the number of statements, except renewals, that can be in progress.
func (l *Link) Slots() int { return cap(l.slots) }

// Latency returns how long statements take lately: all but renewals, and the slower of these and
// renewals.
func (l *Link) Latency() (most, slowest time.Duration) {
	most = l.latency.get()
	return most, max(most, l.renewPace.get())
}

// Suspect pings the idle connections that have not answered since that time, when a statement was
// sent that is late. They are not used until they answer.
func (l *Link) Suspect(since time.Time) { l.pool.suspect(since) }
