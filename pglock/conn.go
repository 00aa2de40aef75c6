package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtx"
)

// WithConn runs fn with a connection of the pool that was passed to Open, or of the *sql.DB that
// was passed to OpenDB, and returns the connection afterwards. It waits for a connection until ctx
// is done, holds no lock, and works after Close too. Packages that stand on a Client use it for
// their own tables, so that they work with both.
//
// The error is fn's, or that of the pool. fn must end its transactions: a connection that is
// closed, busy or in a transaction when fn returns is not used again.
func (c *Client) WithConn(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	if c.db == nil {
		return c.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return fn(conn.Conn()) })
	}
	conn, giveBack, err := pgtx.Borrow(ctx, c.db)
	if err != nil {
		return err
	}
	defer giveBack()
	return fn(conn)
}
