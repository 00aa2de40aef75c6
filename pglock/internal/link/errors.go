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
	"github.com/pglock/pglock-go/internal/schema"
)

// errStandby says why a connection accepts no writes. After a failover it may be the wrong server,
// so that another attempt may succeed.
var errStandby = errs.Errorf("%w: the server is a standby: name all hosts of the cluster and set target_session_attrs=read-write", errs.ErrUnavailable)

// Explain turns an error of a statement, or of a connection, into one for users, and wraps a
// temporary failure with ErrUnavailable. op names the operation. The server's error stays in the
// chain.
func (l *Link) Explain(op string, err error) error {
	if err == nil {
		return nil // errors.As would allocate
	}
	switch {
	case errors.Is(err, errs.ErrUnavailable), errors.Is(err, errs.ErrLogin), errors.Is(err, schema.ErrSchema), errors.Is(err, errs.ErrPrivilege), errors.Is(err, errs.ErrClosed):
		return err // explained where it was found
	case pgtx.LoginRejected(err):
		return errs.Errorf("pglock: %s: %w: %w", op, errs.ErrLogin, err)
	}
	state := pgtx.SQLState(err)
	if l.standby && state == pgtx.FeatureNotSupported { // an unlogged table on a standby
		state = pgtx.ReadOnlySQLTransaction
	}
	switch state {
	case pgtx.UndefinedTable, pgtx.UndefinedColumn, pgtx.UndefinedFunction, pgtx.InvalidSchemaName:
		return &schema.Error{Kind: schema.ErrMissing, Name: l.schema, Want: schema.Version, Cause: err}
	case pgtx.InsufficientPrivilege:
		return schema.Privilege("pglock: "+op, l.schema, err)
	case pgtx.DuplicatePreparedStatement, pgtx.InvalidSQLStatementName:
		return errs.Errorf("pglock: %s: %w: a pooler that does not know prepared statements is in between: set default_query_exec_mode=exec in the connection string", op, err)
	case pgtx.ReadOnlySQLTransaction:
		return errs.Errorf("pglock: %s: %w: %w: the server is a standby, or default_transaction_read_only is on: connect to the primary", op, errs.ErrUnavailable, err)
	}
	if Transient(err) {
		return errs.Errorf("pglock: %s: %w: %w", op, errs.ErrUnavailable, err)
	}
	return errs.Errorf("pglock: %s: %w", op, err)
}

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
		return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "53") || pgtx.PlanChanged(err)
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

// ConnectionFailed reports whether the connection failed, rather than the statement. One whose
// prepared statements are out of date is as useless as one that was closed, and so are the others.
func ConnectionFailed(err error) bool {
	if err == nil {
		return false
	}
	if state := pgtx.SQLState(err); state != "" {
		return endsConnection(state) || pgtx.PlanChanged(err)
	}
	return !errors.Is(err, context.Canceled) && Transient(err)
}

// endsConnection reports whether the server, or a pooler, ends the connection with an error of that
// SQLSTATE, or whether the connection is useless because its server can't write.
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
