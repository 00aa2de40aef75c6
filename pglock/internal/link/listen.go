package link

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// notifySQL tests a listening connection.
const notifySQL = "SELECT pg_notify($1::text, '')"

// listenSQL returns the statements of one transaction that listens. Their texts are the same for
// all clients, except for a constant of a SELECT, which pg_stat_statements leaves out: a LISTEN for
// each client's own channel would be an entry of its own there. pg_stat_activity shows the first
// one.
func listenSQL(shared string, channels []string) string {
	return "LISTEN " + schema.Quote(shared) + "; " +
		"SELECT pg_catalog.set_config('pglock.channels', " + schema.Literal(strings.Join(channels, " ")) + ", true); " + `
DO $$ DECLARE channel text; BEGIN
    FOREACH channel IN ARRAY pg_catalog.string_to_array(pg_catalog.current_setting('pglock.channels'), ' ') LOOP
        EXECUTE pg_catalog.format('LISTEN %I', channel);
    END LOOP;
END $$`
}

// Listen opens a connection of its own that listens on a channel that clients share, and on its own
// channels, whose names have no blanks. The caller must close it.
func (l *Link) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	config, before := l.listener, (func(context.Context, *pgx.ConnConfig) error)(nil)
	if config == nil {
		config, before = l.config.ConnConfig, l.config.BeforeConnect
	}
	config = config.Copy()
	config.OnNotification = nil // it would take the notifications of this connection
	conn, err := connect(ctx, config, before, l.pool.leastBound())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	err = normalizeSession(ctx, conn.PgConn()) // names arrive in UTF-8
	if err == nil {
		_, err = conn.Exec(ctx, listenSQL(shared, channels), pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// Notify sends an empty notification on channel, with another connection than that of Listen.
func (l *Link) Notify(ctx context.Context, channel string) error {
	_, err := l.Send(ctx, leasetable.Statement{SQL: notifySQL, Args: []any{channel}})
	l.trimQueue(ctx, err)
	return err
}
