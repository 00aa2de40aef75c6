package leasetable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/schema"
)

// errReadOnly: the connection leads to a standby, or to a server set read-only.
var errReadOnly = fmt.Errorf("%w: the server takes no writes: for a cluster name all hosts and set target_session_attrs=read-write", ErrUnavailable)

// errLate: the grant came when it could not be trusted any more.
var errLate = fmt.Errorf("%w: the answer took longer than the lease is trusted", ErrUnavailable)

// explain turns what pgx said into this package's errors. Failures that may pass
// by themselves get ErrUnavailable in front; what the server said stays in the chain.
func explain(schemaName, doing string, err error) error {
	if err == nil {
		return nil // errors.As would cost memory
	}
	var pg *pgconn.PgError
	var se *SchemaError
	switch {
	case errors.Is(err, ErrUnavailable), errors.As(err, &se), errors.Is(err, ErrPrivilege), errors.Is(err, ErrClosed):
		return err // explained already, in greet
	case errors.As(err, &pg):
		switch pg.Code {
		case "42P01", "42883", "3F000": // undefined_table, undefined_function, invalid_schema_name
			return &schema.Error{Kind: ErrSchemaMissing, Name: schemaName, Want: schema.Version, Cause: pg}
		case "42501": // insufficient_privilege
			return fmt.Errorf("%w in schema %q: %w", ErrPrivilege, schemaName, err)
		case "28000", "28P01", "3D000": // invalid_authorization, invalid_password, invalid_catalog_name
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
		}
	}
	if transient(err) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
	}
	return fmt.Errorf("leasetable: %s: %w", doing, err)
}

// transient reports whether the same statement may succeed later, on another
// connection: the network, a restart, a failover, a limit that was reached.
func transient(err error) bool {
	switch {
	case errors.Is(err, ErrClosed):
		return false
	case errors.Is(err, ErrUnavailable):
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "25006", // read_only_sql_transaction: the primary became a standby
			"40001", "40P01", // serialization_failure, deadlock_detected
			"55P03",                            // lock_not_available: the role's lock_timeout
			"40003",                            // statement_completion_unknown
			"57014",                            // query_canceled: the role's statement_timeout
			"57P01", "57P02", "57P03", "57P05": // shutdown, crash, starting up, idle session ended
			return true
		}
		// connection_exception, insufficient_resources
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53")
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		pgconn.SafeToRetry(err)
}

// rowLocked reports whether the statement gave up waiting for a row.
func rowLocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03" // lock_not_available
}

// applied reports whether the statement may have been carried out all the same:
// the answer was lost, not the request.
func applied(err error) bool {
	if err == nil {
		return false
	}
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return false
	case errors.As(err, &pg):
		// A pooler that lost its server says 08; 40003 is statement_completion_unknown.
		return endsConnection(pg) || pg.Code == "40003" || strings.HasPrefix(pg.Code, "XX")
	}
	return true
}

// connectionFailed reports whether the fault was the connection's, not the statement's.
func connectionFailed(err error) bool {
	if err == nil {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return endsConnection(pg)
	}
	return !errors.Is(err, context.Canceled) && transient(err)
}

// endsConnection reports whether the server, or a pooler before it, ends the
// connection with this error.
func endsConnection(pg *pgconn.PgError) bool {
	return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P") || pg.Code == "25006"
}
