package pgtest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wrapConns wraps the connections that are opened with c from now on.
func wrapConns(c *pgx.ConnConfig, wrap func(net.Conn) net.Conn) {
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

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
	wrapConns(c.ConnConfig, func(conn net.Conn) net.Conn { return &turns{Conn: conn} })
}

// Turns returns the number of round trips of a connection from a pool with CountTurns.
func Turns(tb testing.TB, conn *pgx.Conn) int64 {
	tb.Helper()
	c, ok := conn.PgConn().Conn().(*turns)
	if !ok {
		tb.Fatalf("pgtest: %T counts no turns", conn.PgConn().Conn())
	}
	return c.n.Load()
}

// ReplyGate withholds the server's replies on the connections of a configuration, and counts the
// connections that are opened. A request to cancel opens one, so the count shows whether there
// was a request. The zero ReplyGate lets replies pass.
type ReplyGate struct {
	dials atomic.Int64
	held  atomic.Pointer[chan struct{}] // closed when replies pass; nil: they do
}

// On puts the gate on the connections that are opened with c from now on.
func (g *ReplyGate) On(c *pgx.ConnConfig) {
	wrapConns(c, func(conn net.Conn) net.Conn {
		g.dials.Add(1)
		return gatedConn{conn, g}
	})
}

// Dials returns how many connections were opened.
func (g *ReplyGate) Dials() int64 { return g.dials.Load() }

// Hold withholds replies until Release. It is not called while they are withheld.
func (g *ReplyGate) Hold() {
	held := make(chan struct{})
	g.held.Store(&held)
}

// Release lets replies pass, also those that were withheld. It may be called again.
func (g *ReplyGate) Release() {
	if held := g.held.Swap(nil); held != nil {
		close(*held)
	}
}

type gatedConn struct {
	net.Conn
	gate *ReplyGate
}

func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if held := c.gate.held.Load(); held != nil {
		<-*held
	}
	return n, err
}
