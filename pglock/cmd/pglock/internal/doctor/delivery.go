package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/schema"
)

const pollRemedy = "give clients pglock.WithListener with a connection string past the pooler, or pglock.WithPollOnly"

// checkPooler: a pooler reports process numbers of its own.
func (e *exam) checkPooler(ctx context.Context) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, e.Limits.Answer)
	defer cancel()
	var pid uint32
	if err := e.row(ctx, "SELECT pg_catalog.pg_backend_pid()", nil, &pid); err != nil {
		return nil, err
	}
	if pid == e.conn.PgConn().PID() {
		return ok("none: the connection leads to the server"), nil
	}
	switch err := advisory.EnsureDirect(ctx, e.conn); {
	case errors.Is(err, advisory.ErrPooled):
		return []Result{warn("a pooler in transaction mode: no LISTEN, no session locks, perhaps no prepared statements",
			pollRemedy+"; if the pooler does not know prepared statements, set default_query_exec_mode=exec")}, nil
	case err != nil:
		return nil, err
	}
	return ok("one in session mode"), nil
}

// notificationQueue is the part of the queue from which on it is a problem.
const notificationQueue = 0.5

// checkNotifications sends a notification from one connection to another, as a release does.
func (e *exam) checkNotifications(ctx context.Context) ([]Result, error) {
	if e.standby {
		return nil, nil // a standby accepts no LISTEN
	}
	var usage float64
	if err := e.row(ctx, "SELECT pg_catalog.pg_notification_queue_usage()", nil, &usage); err != nil {
		return nil, err
	}
	var problems []Result
	if r, full := checkQueue(usage); full {
		problems = append(problems, r)
	}
	delivered, err := e.deliver(ctx)
	if err != nil {
		return problems, err
	}
	if !delivered {
		problems = append(problems, warn(fmt.Sprintf("a notification did not arrive within %v: waiters poll, and get a lock up to a second late", e.Limits.Deliver), pollRemedy))
	}
	return orOK(problems, "delivered, %.0f %% of the queue in use", usage*100)
}

// checkQueue takes the used part of the notification queue, 0 to 1.
func checkQueue(usage float64) (Result, bool) {
	if usage < notificationQueue {
		return Result{}, false
	}
	return warn(fmt.Sprintf("%.0f %% of the notification queue is in use: when it is full, waiters poll", usage*100),
		"end the session that listens and is in a transaction for long: the server's log names it"), true
}

// deliver reports whether a notification arrives. It listens on a connection of its own.
func (e *exam) deliver(ctx context.Context) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, e.Limits.Connect)
	defer cancel()
	listener, err := pgx.ConnectConfig(dialCtx, e.Conn)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.Limits.Answer)
		defer cancel()
		_ = listener.Close(ctx)
	}()
	channel := "pglock doctor " + rand.Text()
	answerCtx, cancel := context.WithTimeout(ctx, e.Limits.Answer)
	defer cancel()
	if _, err := listener.Exec(answerCtx, "LISTEN "+schema.Quote(channel)); err != nil {
		return false, err
	}
	if _, err := e.conn.Exec(answerCtx, "SELECT pg_catalog.pg_notify($1::text, '')", channel); err != nil {
		return false, err
	}
	deliverCtx, cancel := context.WithTimeout(ctx, e.Limits.Deliver)
	defer cancel()
	_, err = listener.WaitForNotification(deliverCtx)
	return err == nil, ctx.Err() // any failure to receive means that it was not delivered
}
