package advisory

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

const (
	// askings is how often the two connections are asked for their process. In a pooler of two sessions that are
	// always wanted by others, each answer is the same as before with a probability of a half.
	askings = 20

	// secondWait bounds what the second connection does: a pooler may let it wait for a session.
	secondWait = 10 * time.Second
)

// refusePooler returns ErrPooled if a pooler lends the server's sessions to the connection for
// a transaction at a time. pid is the process that serves it at the moment.
//
// The number that the server gave when the connection was made is that of its process. A pooler
// gives numbers of its own, so where they agree there is none. Where they differ there may be
// one in session mode, which is no harm: there a connection has one process, which no other
// has. So this one and a second are asked in turn. One question would not do: with others at work it
// may be the same session by chance. Each is asked twice running, since a pooler that goes round
// its sessions gives two that take turns the same ones all the time.
//
// ctx ends the second connection; conn outlasts it.
func refusePooler(ctx context.Context, conn *pgx.Conn, pid uint32) error {
	if conn.PgConn().PID() == pid {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, secondWait, fmt.Errorf("a second connection was not served within %v", secondWait))
	defer cancel()
	pooled, err := lent(bounded, conn, pid)
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		return fmt.Errorf("advisory: looking for a pooler in transaction mode: %w", context.Cause(bounded))
	case err != nil:
		return fmt.Errorf("advisory: looking for a pooler in transaction mode: %w", err)
	case pooled:
		return ErrPooled
	}
	return nil
}

// lent reports whether conn was served by another process than pid, or shares that with a
// second connection, or that one changed.
func lent(ctx context.Context, conn *pgx.Conn, pid uint32) (bool, error) {
	second, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return false, err
	}
	defer func() { _ = await.CleanUp(ctx, second.Close) }()
	other, err := backend(ctx, second)
	for i := 0; err == nil && other != pid && i < askings; i++ {
		var now, before uint32
		if i%4 < 2 {
			before = pid
			now, err = servedBy(ctx, conn)
		} else {
			before = other
			now, err = backend(ctx, second)
		}
		if err == nil && now != before {
			return true, nil
		}
	}
	return other == pid, err
}

// servedBy is backend on a connection that the end of ctx does not close.
func servedBy(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = await.Run(ctx, conn, await.UntilAnswered, func(ctx context.Context) (err error) {
		pid, err = backend(ctx, conn)
		return err
	})
	return pid, err
}
