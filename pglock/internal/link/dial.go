package link

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
)

// unansweredError is the end of a dial that a server has accepted and left without an answer.
type unansweredError struct{ error }

func (e unansweredError) Unwrap() error { return e.error }

// dial opens a connection, runs the application's hooks and checks the server. Each step has its
// own time limit. That of the first one is as in connect.
func (l *Link) dial(ctx context.Context, least time.Duration) (*pgx.Conn, error) {
	conn, err := connect(ctx, l.config.ConnConfig, l.config.BeforeConnect, least)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timing.InitBound)
	defer cancel()
	if l.config.AfterConnect != nil {
		err = l.config.AfterConnect(ctx, conn)
	}
	if err == nil {
		err = l.initConn(ctx, conn)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// connect opens a connection. Each host has the connect timeout of the connection string. Without
// one it has timing.ConnectBound or least, whichever is longer.
func connect(ctx context.Context, config *pgx.ConnConfig, before func(context.Context, *pgx.ConnConfig) error, least time.Duration) (*pgx.Conn, error) {
	config = config.Copy()
	if before != nil { // may set a short-lived password
		ctx, cancel := context.WithTimeout(ctx, timing.InitBound)
		defer cancel()
		if err := before(ctx, config); err != nil {
			return nil, err
		}
	}
	if config.ConnectTimeout <= 0 {
		config.ConnectTimeout = max(timing.ConnectBound, least)
	}
	if config.DefaultQueryExecMode == pgx.QueryExecModeDescribeExec {
		// This mode parses a statement and executes it later, in two transactions. Behind a pooler
		// in transaction mode the second one may execute another client's statement.
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	var accepted atomic.Bool
	dialHost := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialHost(ctx, network, address)
		if err == nil {
			accepted.Store(true)
		}
		return conn, err
	}
	// pgx bounds each address. This bounds name lookups and pgconn's hooks, with room for a host
	// with two addresses.
	ctx, cancel := context.WithTimeout(ctx, config.ConnectTimeout*time.Duration(2+len(config.Fallbacks)))
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		if accepted.Load() && pgtx.Unanswered(err) {
			err = unansweredError{err}
		}
		return nil, err
	}
	if err := schema.CheckEngine(conn.PgConn()); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// initConn checks the server of a new connection: after a failover it may be another one. See
// server.go.
func (l *Link) initConn(ctx context.Context, conn *pgx.Conn) error {
	server, err := l.readServerInfo(ctx, conn.PgConn())
	if err != nil {
		return l.Explain("open", err)
	}
	conn.PgConn().CustomData()[frameKey] = server.frame
	if err := schema.Check(l.schema, server.version, server.oldest); err != nil {
		return err
	}
	conn.PgConn().CustomData()[standbyKey] = server.standby
	switch {
	case l.standby && (server.standby || server.readOnly):
		return nil
	case server.standby:
		return errStandby
	case server.readOnly:
		return errs.Errorf("%w: default_transaction_read_only is on%s: turn it off for this role, or name all hosts of the cluster "+
			"and set target_session_attrs=read-write", errs.ErrUnavailable, readOnlySetBy(ctx, conn.PgConn()))
	}
	if err := l.checkTokens(ctx, conn.PgConn()); err != nil {
		return l.Explain("open", err)
	}
	return nil
}
