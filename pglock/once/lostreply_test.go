package once_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/once"
)

// breaker breaks a connection when the reply to a statement with the first text arrives, then when
// that to one with the second text does, and so on. The server has run the statements.
type breaker struct {
	texts  []string
	broken atomic.Int32 // how many texts
}

// breaks reports whether the reply to a message is the next one to lose.
func (b *breaker) breaks(message []byte) bool {
	n := b.broken.Load()
	return int(n) < len(b.texts) && bytes.Contains(message, []byte(b.texts[n])) && b.broken.CompareAndSwap(n, n+1)
}

func (b *breaker) on(c *pgx.ConnConfig) {
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // each message has the text
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &breakingConn{Conn: conn, breaker: b}, err
	}
}

type breakingConn struct {
	net.Conn
	breaker *breaker
	sent    atomic.Bool
}

func (c *breakingConn) Write(p []byte) (int, error) {
	if c.breaker.breaks(p) {
		c.sent.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *breakingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.sent.Load() {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestDoRepliesAreLost: each statement of Do is sent again when its reply is lost, and finds what the
// first one has done. So is the one that looks for what the first one has done.
func TestDoRepliesAreLost(t *testing.T) {
	t.Parallel()
	failure := errors.New("not now")
	for name, test := range map[string]struct {
		texts   []string
		outcome error
		state   string
	}{
		"claim":           {[]string{"once_claim"}, nil, "done"},
		"record":          {[]string{"WITH durable"}, nil, "done"},
		"record and read": {[]string{"WITH durable", "SELECT false"}, nil, "done"},
		"forget":          {[]string{"DELETE FROM"}, once.NotDone(failure), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			b := &breaker{texts: test.texts}
			config := f.pool.Config()
			b.on(config.ConnConfig)
			c := f.clientWith(config)
			first, err := f.do(c, "k", test.outcome)
			if (err == nil) != (test.outcome == nil) || err != nil && !errors.Is(err, failure) || int(b.broken.Load()) != len(test.texts) || f.effects("k") != 1 || f.state("k") != test.state {
				t.Errorf("%v, %d replies lost, %d effects, state %q", err, b.broken.Load(), f.effects("k"), f.state("k"))
			}
			if test.outcome != nil {
				return
			}
			if again, err := f.do(c, "k", nil); again != first || err != nil {
				t.Errorf("again: %d, %v, at first %d", again, err, first)
			}
		})
	}
}
