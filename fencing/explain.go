package fencing

import (
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// The SQLSTATEs of pglock. Neither PostgreSQL nor the SQL standard uses class PG.
const (
	codeStale     = "PGL01"
	codeUnfenced  = "PGL02"
	codeOtherLock = "PGL03"
)

// sentinels are the errors that need only the SQLSTATE.
var sentinels = map[string]error{
	codeUnfenced: ErrUnfenced,
	"PGL04":      ErrNoTable,
	"PGL05":      ErrColumn,
	"PGL06":      ErrProtected,
	"PGL07":      ErrInvalidOption,
	"PGL08":      ErrInvalidFence,
	"PGL09":      ErrFull,
	"PGL10":      ErrShared,

	pgtx.IdleInTransactionSessionTimeout: ErrPaused,
}

// Explain turns the error of a caller's own statement into one of this package: ErrStale (a
// *StaleError), ErrUnfenced, ErrOtherLock, whose text names the lock, or ErrPaused. The result
// wraps the server's error. Explain returns any other error, and nil, unchanged.
//
// For a driver other than pgx, Explain reads the SQLSTATE by a method SQLState() string. The facts
// of the error, such as its tokens, are then zero.
func Explain(err error) error {
	if errors.Is(err, ErrStale) || errors.Is(err, ErrOtherLock) {
		return err // already explained
	}
	var known error
	switch code := pgtx.SQLState(err); code {
	case codeStale:
		known = readFacts(err)
	case codeOtherLock:
		resource := readFacts(err).Resource
		known = errs.Errorf("%w: %q", ErrOtherLock, resource)
		if resource == "" { // the row names no lock, or the statement was TRUNCATE
			known = errs.Errorf("%w: of no lock that is bound", ErrOtherLock)
		}
	default:
		known = sentinels[code]
	}
	if known == nil || errors.Is(err, known) {
		return err
	}
	return errs.Errorf("%w (%w)", known, err)
}

// readFacts reads the JSON that the functions of pglock put into the DETAIL of an error.
func readFacts(err error) *StaleError {
	var facts StaleError
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// Another program's DETAIL leaves the facts empty.
		_ = json.Unmarshal([]byte(pg.Detail), &facts)
	}
	return &facts
}

// explainCall is Explain for a call of a function in the named schema. operation is for the error's
// text.
func explainCall(schemaName, operation string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrTxClosed) {
		return errs.Errorf("%w: %s: %w", ErrNoTransaction, operation, err)
	}
	switch pgtx.SQLState(err) {
	case pgtx.InvalidSchemaName, pgtx.UndefinedFunction: // no tables, or those of an earlier version
		return &schema.Error{Kind: ErrSchemaMissing, Name: schemaName, Want: schema.Version, Cause: err}
	case pgtx.SerializationFailure: // the row has changed since the snapshot
		return errs.Errorf("%w: %s: %w", ErrSnapshot, operation, err)
	case pgtx.InsufficientPrivilege:
		return errs.Errorf("%w: %s: %w", ErrPrivilege, operation, err)
	}
	if known := Explain(err); known != err { //nolint:errorlint // whether it is the same value is the question
		return known
	}
	return errs.Errorf("fencing: %s: %w", operation, err)
}
