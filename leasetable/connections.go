package leasetable

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/schema"
)

// connections are the client's own: the application's pool may be starved, or
// held by callers who wait for the very lock that is to be released.
type connections struct {
	pool   *pgxpool.Pool
	schema string

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

// querier is a connection, or a transaction on one.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// openConnections derives a pool from the application's: same server, user and
// hooks for connecting, own size. It connects to nothing yet.
func openConnections(ctx context.Context, app *pgxpool.Pool, cfg clientConfig) (*connections, error) {
	c := &connections{
		schema:   cfg.schema,
		slots:    make(chan struct{}, cfg.maxConns-1),
		renewals: make(chan struct{}, 2),
	}
	p := app.Config()
	p.MaxConns, p.MinConns, p.MinIdleConns = int32(cfg.maxConns)+dyingConns, 0, 0
	p.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil } // overrides BeforeAcquire too
	p.AfterRelease, p.BeforeClose = nil, nil
	// A ping costs a round trip. Every statement here can be repeated instead.
	p.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
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
	if c.pool, err = pgxpool.NewWithConfig(ctx, p); err != nil {
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

// use is one statement of the protocol. It gets the time just before the statement
// is sent: what the server promises counts from there.
type use func(ctx context.Context, q querier, sent time.Time) error

// do runs what is no renewal.
func (c *connections) do(ctx context.Context, u use) error { return c.within(ctx, c.slots, u) }

// doRenewal runs a renewal.
func (c *connections) doRenewal(ctx context.Context, u use) error {
	return c.within(ctx, c.renewals, u)
}

func (c *connections) within(ctx context.Context, slots chan struct{}, u use) error {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which destroys it unless it is idle and healthy
	if !c.explicitRC.Load() {
		return u(ctx, conn, time.Now())
	}
	// Under a stricter default, takeovers would fail to serialize instead of
	// waiting their turn. One READ COMMITTED statement needs none of that.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if err := u(ctx, tx, time.Now()); err != nil {
		return err
	}
	return tx.Commit(ctx)
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
