package link

import (
	"errors"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// errStandby says why a connection accepts no writes. After a failover it may be the wrong server, so that
// another attempt may succeed.
var errStandby = errs.Errorf("%w: the server is a standby, where locks can't be looked at either: name all hosts of the cluster and set target_session_attrs=read-write", errs.ErrUnavailable)

// Explain turns an error of a statement, or of a connection, into one for users, and wraps a temporary failure with
// ErrUnavailable. op names the operation. The server's error stays in the chain.
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
	switch pgtx.SQLState(err) {
	case pgtx.UndefinedTable, pgtx.UndefinedColumn, pgtx.UndefinedFunction, pgtx.InvalidSchemaName:
		return &schema.Error{Kind: schema.ErrMissing, Name: l.schema, Want: schema.Version, Cause: err}
	case pgtx.InsufficientPrivilege:
		return schema.Privilege("pglock: "+op, l.schema, err)
	case pgtx.DuplicatePreparedStatement, pgtx.InvalidSQLStatementName:
		return errs.Errorf("pglock: %s: %w: a pooler that does not know prepared statements is in between: set default_query_exec_mode=exec in the connection string", op, err)
	case pgtx.ReadOnlySQLTransaction:
		return errs.Errorf("pglock: %s: %w: %w: the server is a standby, or default_transaction_read_only is on", op, errs.ErrUnavailable, err)
	}
	if Transient(err) {
		return errs.Errorf("pglock: %s: %w: %w", op, errs.ErrUnavailable, err)
	}
	return errs.Errorf("pglock: %s: %w", op, err)
}
