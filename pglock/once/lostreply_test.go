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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock/once"
)

// breaker breaks a connection when the reply to a statement with that text arrives, once. The server
// has run the statement.
type breaker struct {
	text   []byte
	broken atomic.Bool
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
	if bytes.Contains(p, c.breaker.text) && c.breaker.broken.CompareAndSwap(false, true) {
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
// first one has done.
func TestDoRepliesAreLost(t *testing.T) {
	t.Parallel()
	failure := errors.New("not now")
	for text, test := range map[string]struct {
		outcome error
		state   string
	}{
		"once_claim":   {nil, "done"},
		"WITH durable": {nil, "done"},
		"DELETE FROM":  {once.NotDone(failure), ""},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			b := &breaker{text: []byte(text)}
			config := f.pool.Config()
			b.on(config.ConnConfig)
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			breaks := f
			breaks.pool = pool
			c := breaks.client()
			first, err := f.do(c, "k", test.outcome)
			if test.outcome == nil {
				wantErr(t, "first", err)
			} else {
				wantErr(t, "first", err, failure)
			}
			if errors.Is(err, once.ErrOutcomeUnknown) || !b.broken.Load() || f.effects("k") != 1 || f.state("k") != test.state {
				t.Errorf("%v, reply lost: %v, %d effects, state %q", err, b.broken.Load(), f.effects("k"), f.state("k"))
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
