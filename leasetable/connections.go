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

	// slots has room for all uses but renewals; one connection more than it has
	// slots is left for those.
	slots chan struct{}

	// What the last connection found out about the server.
	version    atomic.Int64 // of the schema
	explicitRC atomic.Bool  // the default isolation is stricter than READ COMMITTED
}

// querier is a connection, or a transaction on one.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// openConnections derives a pool from the application's: same server, user and
// hooks for connecting, own size. It connects to nothing yet.
func openConnections(ctx context.Context, app *pgxpool.Pool, cfg clientConfig) (*connections, error) {
	c := &connections{schema: cfg.schema, slots: make(chan struct{}, cfg.maxConns-1)}
	p := app.Config()
	p.MaxConns, p.MinConns, p.MinIdleConns = int32(cfg.maxConns), 0, 0
	p.BeforeAcquire, p.PrepareConn, p.AfterRelease, p.BeforeClose = nil, nil, nil, nil
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

// do runs one statement of the protocol other than a renewal. use gets the time
// just before the statement is sent: what the server promises counts from there.
func (c *connections) do(ctx context.Context, use func(ctx context.Context, q querier, sent time.Time) error) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return c.doFirst(ctx, use)
}

// doFirst is do with the right to the connection that is kept for renewals.
func (c *connections) doFirst(ctx context.Context, use func(ctx context.Context, q querier, sent time.Time) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which destroys it unless it is idle and healthy
	if !c.explicitRC.Load() {
		return use(ctx, conn, time.Now())
	}
	// Under a stricter default, takeovers would fail to serialize instead of
	// waiting their turn. One READ COMMITTED statement needs none of that.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if err := use(ctx, tx, time.Now()); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// close waits until all connections are back; the client's calls have ended by then.
func (c *connections) close() { c.pool.Close() }
