package link

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Transient reports whether the same statement may succeed later on another connection.
func Transient(err error) bool {
	switch {
	case errors.Is(err, errs.ErrClosed), errors.Is(err, errs.ErrLogin):
		return false
	case errors.Is(err, errs.ErrUnavailable):
		return true
	}
	if state := pgtx.SQLState(err); state != "" {
		switch state {
		case pgtx.ReadOnlySQLTransaction, // the primary became a standby
			pgtx.SerializationFailure, pgtx.DeadlockDetected,
			pgtx.LockNotAvailable, pgtx.QueryCanceled, // the role's lock_timeout, statement_timeout
			pgtx.StatementCompletionUnknown,
			pgtx.IdleInTransactionSessionTimeout, pgtx.TransactionTimeout,
			pgtx.AdminShutdown, pgtx.CrashShutdown, pgtx.CannotConnectNow, pgtx.IdleSessionTimeout:
			return true
		}
		// connection_exception, insufficient_resources
		return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "53")
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		pgconn.SafeToRetry(err)
}

// RowLocked reports whether the statement gave up waiting for a row lock.
func RowLocked(err error) bool {
	return pgtx.SQLState(err) == pgtx.LockNotAvailable
}

// MaybeApplied reports whether the server may have executed the statement although it failed.
func MaybeApplied(err error) bool {
	if err == nil {
		return false
	}
	var connect *pgconn.ConnectError
	switch state := pgtx.SQLState(err); {
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return false
	case state != "":
		// A pooler that lost its server reports class 08.
		return endsConnection(state) || state == pgtx.StatementCompletionUnknown || strings.HasPrefix(state, "XX")
	}
	return true
}

// ConnectionFailed reports whether the connection failed, rather than the statement.
func ConnectionFailed(err error) bool {
	if err == nil {
		return false
	}
	if state := pgtx.SQLState(err); state != "" {
		return endsConnection(state)
	}
	return !errors.Is(err, context.Canceled) && Transient(err)
}

// endsConnection reports whether the server, or a pooler, ends the connection with an error of that
// SQLSTATE.
func endsConnection(state string) bool {
	switch state {
	case pgtx.ReadOnlySQLTransaction, pgtx.IdleInTransactionSessionTimeout, pgtx.TransactionTimeout:
		return true
	}
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P")
}

// MayBeNotification reports whether the server refused a statement for good in a way that may
// concern its notification: a right is missing, or the notification queue is full (54000).
func MayBeNotification(err error) bool {
	state := pgtx.SQLState(err)
	return state != "" && !Transient(err) && !endsConnection(state)
}
