package leasetable

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// connections are the client's own: the application's pool may be starved, or
// held by callers who wait for the very lock that is to be released.
type connections struct {
	pool   *pgxpool.Pool
	schema string
	life   context.Context //nolint:containedctx // it is the client's: its end ends every statement

	// Uses at a time: slots bounds all but the renewals, which have their own,
	// so that nothing can starve them; two, so that one that hangs on a dead
	// connection does not block the next. The pool itself is larger: closing a
	// connection whose network is dead takes it up to 15 s, and must not
	// take the place of a new one.
	slots, renewals chan struct{}

	// What the last connection found out about the server.
	version    atomic.Int64 // of the schema
	explicitRC atomic.Bool  // the default isolation is stricter than READ COMMITTED
}

// dyingConns is how many connections may be closing while others take their place.
const dyingConns = 32

// openConnections derives a pool from the application's: same server, user and
// hooks for connecting, own size. It connects to nothing yet.
func openConnections(life context.Context, app *pgxpool.Pool, cfg clientConfig) (*connections, error) {
	c := &connections{
		schema:   cfg.schema,
		life:     life,
		slots:    make(chan struct{}, cfg.maxConns-1),
		renewals: make(chan struct{}, 2),
	}
	p := app.Config()
	p.MaxConns, p.MinConns, p.MinIdleConns = int32(cfg.maxConns)+dyingConns, 0, 0
	p.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil } // overrides BeforeAcquire too
	p.AfterRelease, p.BeforeClose = nil, nil
	// A ping costs a round trip. Every statement here can be repeated instead.
	p.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A pooler in transaction mode may pass on what was meant for a listener. pgx would collect it.
	p.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	p.ConnConfig.RuntimeParams["application_name"] = applicationName(p.ConnConfig.RuntimeParams["application_name"])

	appConnected := p.AfterConnect
	p.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if appConnected != nil {
			if err := appConnected(ctx, conn); err != nil {
				return err
			}
		}
		return c.greet(ctx, conn)
	}
	var err error
	if c.pool, err = pgxpool.NewWithConfig(life, p); err != nil {
		return nil, explain(cfg.schema, "open", err)
	}
	return c, nil
}

// applicationName marks our connections in pg_stat_activity.
func applicationName(app string) string {
	const longest = 63 // NAMEDATALEN-1
	if app == "" {
		return "pglock"
	}
	return fmt.Sprintf("%.*s (pglock)", longest-len(" (pglock)"), app)
}

// greet looks at the server of each new connection, which after a failover may be
// another one, and lifts its tokens where an upgrade or a restore has set them back.
func (c *connections) greet(ctx context.Context, conn *pgx.Conn) error {
	prefix := schema.Quote(c.schema) + "."
	var version int
	var standby, readOnly bool
	var isolation string
	err := conn.QueryRow(ctx, "SELECT "+prefix+"pglock_schema_version(), pg_is_in_recovery(), "+
		"current_setting('default_transaction_read_only')::boolean, current_setting('default_transaction_isolation')",
		pgx.QueryExecModeSimpleProtocol).Scan(&version, &standby, &readOnly, &isolation)
	if err != nil {
		return explain(c.schema, "open", err)
	}
	c.version.Store(int64(version))
	c.explicitRC.Store(isolation != "read committed")
	if version < schema.Version {
		return schema.Check(c.schema, version)
	}
	if standby || readOnly {
		return errReadOnly
	}
	if _, err := conn.Exec(ctx, "SELECT "+prefix+"lift_fencing_tokens()"); err != nil {
		return explain(c.schema, "open", err)
	}
	return nil
}

// close ends all connections, which are idle by then. It returns when they are closed
// or when ctx is done; those that can't be closed properly end a few seconds later.
func (c *connections) close(ctx context.Context) {
	closed := make(chan struct{})
	go func() { c.pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
