package leasetable

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/timing"
)

// notifySQL tests a listening connection.
const notifySQL = "SELECT pg_notify($1::text, '')"

// Listener is a connection that listens.
type Listener interface {
	WaitForNotification(ctx context.Context) (*pgconn.Notification, error)
	Ping(ctx context.Context) error
	Close(ctx context.Context) error
}

// Listen opens a connection of its own that listens on the channels. The caller must close it.
func (s *Store) Listen(ctx context.Context, channels ...string) (Listener, error) {
	config, before := s.listener, (func(context.Context, *pgx.ConnConfig) error)(nil)
	if config == nil {
		config, before = s.config.ConnConfig, s.config.BeforeConnect
	}
	config = config.Copy()
	config.OnNotification = nil // it would take the notifications of this connection
	conn, err := connect(ctx, config, before)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	err = normalizeSession(ctx, conn.PgConn()) // names arrive in UTF-8
	for _, channel := range channels {
		if err == nil {
			_, err = conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
		}
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// Notify sends an empty notification on channel, with another connection than that of Listen.
func (s *Store) Notify(ctx context.Context, channel string) error {
	ctx, cancel := s.withLife(ctx)
	defer cancel()
	_, err := s.sendWithin(ctx, statement{sql: notifySQL, args: []any{channel}})
	s.trimQueue(ctx, err)
	return err
}
