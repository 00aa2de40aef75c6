// Package leasetable runs the statements of the lease protocol.
//
// A [Store] owns a pool of connections and sends each statement on one of them. Its methods are the
// operations of the protocol; the files in sql and the migrations say why each statement is safe. A
// method sends one statement, or a second one for the operations that the first could not decide.
//
// Acquire, HandOff, Release and Revoke of all kinds, LeaveQueue, RenewReserved and CheckGrants need a ctx
// that is derived from the life of the Store. Read, GrantedTo, Prune, LiftTokens, Join, Watch, Renew,
// SetLabels, RevokeGrant, RequestRelease and DeleteDeadRows make two attempts, because the first one may
// meet a connection that died long ago; the others make one.
//
// Errors are those of pgx. [Transient], [MaybeApplied], [ConnectionFailed] and [RowLocked] say what
// they mean for a statement, and [Store.Explain] turns them into errors for users.
//
// # Servers
//
// Every new connection is checked: the version of the schema, whether the server accepts writes,
// and whether it knows the tokens that this client has seen (server.go). A commit whose wait for a
// synchronous standby was canceled counts as unanswered (durable.go).
package leasetable

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/timing"
)

// MaxRenewals is the number of renewal statements in progress for which connections are kept.
const MaxRenewals = 2

// Config configures a Store.
type Config struct {
	Schema   string
	MaxConns int             // one of them is kept for renewals
	Listener *pgx.ConnConfig // of the listening connection; nil: that of the pool
	Logger   *slog.Logger
}

// Store sends the statements of the protocol on connections of its own, because the application's pool may
// be held by callers that wait for the lock that is to be released. A Store is safe for concurrent use.
type Store struct {
	pool     *pool
	config   *pgxpool.Config // of new connections
	listener *pgx.ConnConfig
	schema   string
	logger   *slog.Logger
	sql      map[string]string // by name: see statements
	life     context.Context   //nolint:containedctx // of the client: its end ends every statement

	// slots bounds the statements in progress, except renewals. Renewals have their own bounds, so
	// nothing can starve them.
	slots chan struct{}

	latency, renewPace latency // of other statements and of renewals

	highWater highWater
	notify    notifications
}

// New returns a Store for the database of p, a copy of the configuration of the application's pool, which
// it changes. It opens no connection. The end of life ends every statement. Close the Store.
func New(life context.Context, p *pgxpool.Config, cfg Config) *Store {
	s := &Store{
		config: p, listener: cfg.Listener, schema: cfg.Schema, logger: cfg.Logger,
		sql: statements(cfg.Schema), life: life,
		slots:  make(chan struct{}, cfg.MaxConns-1),
		notify: notifications{epoch: time.Now()},
	}
	// A pooler in transaction mode may deliver a listener's notification here. pgx would collect
	// it.
	p.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	p.ConnConfig.OnNotice = noticeUnconfirmed(p.ConnConfig.OnNotice)
	p.ConnConfig.ValidateConnect = s.rejectOldServers(p.ConnConfig.ValidateConnect)
	p.ConnConfig.RuntimeParams["application_name"] = applicationName(p.ConnConfig.RuntimeParams["application_name"])
	s.pool = newPool(life, s.Slots()+MaxRenewals, poolTimes{
		lifetime: p.MaxConnLifetime, lifetimeJitter: p.MaxConnLifetimeJitter,
		idleTime: p.MaxConnIdleTime, reapEvery: p.HealthCheckPeriod, spareIdle: timing.SpareIdle,
	}, s.dial)
	return s
}

// Check opens the first connection, with the checks that every new connection makes.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*timing.StatementBound)
	defer cancel()
	conn, err := s.pool.acquire(ctx, false)
	if err != nil {
		return s.Explain("open", err)
	}
	s.pool.release(conn)
	return nil
}

// Close closes the connections, of which none is in use, and returns when that is done or ctx ends.
func (s *Store) Close(ctx context.Context) { s.pool.close(ctx) }

// Database identifies the schema and its database: Stores that differ share no locks.
func (s *Store) Database() string {
	c := s.config.ConnConfig
	return fmt.Sprintf("%s:%d %q %q", c.Host, c.Port, c.Database, s.schema)
}

// Slots returns the number of statements, except renewals, that can be in progress.
func (s *Store) Slots() int { return cap(s.slots) }

// Latency returns how long statements take lately: all but renewals, and the slower of these and renewals.
func (s *Store) Latency() (most, slowest time.Duration) {
	most = s.latency.get()
	return most, max(most, s.renewPace.get())
}

// Suspect pings the idle connections that have not answered since that time, when a statement was
// sent that is late. They are not used until they answer.
func (s *Store) Suspect(since time.Time) { s.pool.suspect(since) }
