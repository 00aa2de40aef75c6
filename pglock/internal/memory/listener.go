package memory

import (
	"context"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// listener is a session that listens. Its server's mu guards it.
type listener struct {
	store    *Store
	server   *Server
	channels []string
	pending  []*pgconn.Notification
	arrived  chan struct{} // buffer of one
	ended    error
}

// Listen is link.Link.Listen.
func (c *Store) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	channels = append(channels, shared)
	return ask[backend.Listener](ctx, c, Message{Op: "listen"}, func() backend.Listener {
		l := &listener{store: c, server: c.server, channels: channels, arrived: make(chan struct{}, 1)}
		c.server.sessions = append(c.server.sessions, l)
		return l
	})
}

// notify is pg_notify, for a caller that holds mu: a transaction sends the same notification once.
func (s *Server) notify(channel, payload string) {
	n := pgconn.Notification{Channel: channel, Payload: payload}
	if slices.Contains(s.sent, n) {
		return
	}
	s.sent = append(s.sent, n)
	for _, l := range s.sessions {
		if slices.Contains(l.channels, channel) {
			l.pending = append(l.pending, &n)
			l.signal()
		}
	}
}

func (l *listener) signal() {
	select {
	case l.arrived <- struct{}{}:
	default: // a signal is pending
	}
}

// end ends the session. The caller holds mu.
func (l *listener) end(err error) {
	l.server.sessions = slices.DeleteFunc(l.server.sessions, func(other *listener) bool { return other == l })
	l.ended = err
	l.signal()
}

func (l *listener) WaitForNotification(ctx context.Context) (*pgconn.Notification, error) {
	for {
		if n, err := l.take(); n != nil || err != nil {
			return n, err
		}
		select { // if both are ready, either is right
		case <-l.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *listener) take() (*pgconn.Notification, error) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if len(l.pending) == 0 {
		return nil, l.ended
	}
	n := l.pending[0]
	l.pending = l.pending[1:]
	return n, nil
}

func (l *listener) Ping(ctx context.Context) error {
	_, err := run(ctx, l.store, Message{Op: "ping"}, func() (struct{}, error) { return struct{}{}, l.ended })
	return err
}

func (l *listener) Close(context.Context) error {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.end(net.ErrClosed)
	return nil
}
