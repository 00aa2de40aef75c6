package pgtest

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// ReplyGate withholds the server's replies on the connections of a configuration, and counts the
// connections that are opened. A request to cancel opens one, so the count shows whether there
// was a request. The zero ReplyGate lets replies pass.
type ReplyGate struct {
	dials atomic.Int64
	held  atomic.Pointer[chan struct{}] // closed when replies pass; nil: they do
}

// On puts the gate on the connections that are opened with c from now on.
func (g *ReplyGate) On(c *pgx.ConnConfig) {
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		g.dials.Add(1)
		conn, err := dial(ctx, network, address)
		return gatedConn{conn, g}, err
	}
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
