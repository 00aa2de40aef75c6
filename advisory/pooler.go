package advisory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// poolerProbes is how often the two connections are queried for their process. In a pooler of two
// busy sessions, each result is the same as the one before with a probability of one half.
const poolerProbes = 20

// EnsureDirect returns an error that wraps ErrPooled if conn reaches the server through a pooler
// that lends sessions for one transaction at a time. A session lock would stay behind in a session
// that serves others. Acquire checks this by itself; EnsureDirect is for programs that lock on
// their own connection. It may open a second connection for a moment. ctx bounds the call, and conn
// survives the end of ctx unless the server is silent.
func EnsureDirect(ctx context.Context, conn *pgx.Conn) error {
	_, err := directBackendPID(ctx, conn)
	return err
}

// directBackendPID returns the process that serves the connection, after a check for a pooler. The
// result is kept with the connection.
func directBackendPID(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	const key = "pglock.backend"
	if pid, ok := conn.PgConn().CustomData()[key].(uint32); ok {
		return pid, nil
	}
	if err = checkEngine(conn); err != nil {
		return 0, err
	}
	if pid, err = backendPID(ctx, conn); err != nil {
		return 0, err
	}
	if conn.PgConn().PID() != pid {
		err = refusePooler(ctx, conn, pid)
	}
	if err == nil {
		conn.PgConn().CustomData()[key] = pid
	}
	return pid, err
}

// refusePooler returns ErrPooled if a pooler lends the server's sessions to the connection for a
// transaction at a time. pid is the process that serves the connection now.
//
// When a connection is made, the server reports its process. A pooler reports numbers that it makes
// up, so if the two numbers agree there is no pooler. If they differ, the pooler may be in session
// mode, where each connection has a process that no other has. So this connection and a second one
// are queried in turn. One query is not enough: with other clients at work, a connection may get
// the same session by chance. Each is queried twice in a row, since a pooler that rotates its
// sessions gives two connections that take turns the same sessions every time.
//
// conn survives the end of ctx.
func refusePooler(ctx context.Context, conn *pgx.Conn, pid uint32) error {
	bounded, cancel := context.WithTimeoutCause(ctx, secondConnWait, fmt.Errorf("a second connection was not served within %v", secondConnWait))
	defer cancel()
	pooled, err := sharesSessions(bounded, conn, pid)
	switch {
	case pooled:
		return ErrPooled
	case err == nil:
		return nil
	case ctx.Err() == nil && bounded.Err() != nil:
		err = context.Cause(bounded)
	}
	return errs.Errorf("advisory: detecting a pooler in transaction mode: %w", err)
}

// sharesSessions reports whether a pooler shares the server's sessions between connections: conn's
// backend PID is no longer pid, or a second connection has the same PID, or that one's PID changes.
func sharesSessions(ctx context.Context, conn *pgx.Conn, pid uint32) (bool, error) {
	second, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return false, err
	}
	defer func() { _ = pgtx.CleanUp(ctx, second.Close) }()
	other, err := backendPID(ctx, second)
	conns, pids := [2]*pgx.Conn{conn, second}, [2]uint32{pid, other}
	for i := 0; err == nil && other != pid && i < poolerProbes; i++ {
		var now uint32
		which := i / 2 % 2
		if now, err = backendPID(ctx, conns[which]); err == nil && now != pids[which] {
			return true, nil
		}
	}
	return err == nil && other == pid, err
}

// backendPID returns the process that serves the connection now. The connection survives the end
// of ctx.
func backendPID(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error {
		return conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	})
	return pid, err
}
