package pgtest

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// turns is a connection that counts its round trips: how often the client writes after it has read.
type turns struct {
	net.Conn
	n        atomic.Int64
	answered atomic.Bool // since the last write
}

func (c *turns) Write(b []byte) (int, error) {
	if c.answered.Swap(false) {
		c.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *turns) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

// CountTurns makes a pool have one connection, which counts its round trips. The pool itself makes none.
func CountTurns(c *pgxpool.Config) {
	c.MaxConns = 1
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &turns{Conn: conn}, err
	}
}

// Turns returns the number of round trips of a connection from a pool with CountTurns.
func Turns(conn *pgx.Conn) int64 { return conn.PgConn().Conn().(*turns).n.Load() }
