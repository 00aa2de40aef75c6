package fencing

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/schema"
)

// The SQLSTATEs of our own: class PG is used neither by PostgreSQL nor by the standard.
const (
	codeStale     = "PGL01"
	codeUnfenced  = "PGL02"
	codeOtherLock = "PGL03"
	codeNoTable   = "PGL04"
	codeColumn    = "PGL05"
	codeProtected = "PGL06"
	codeOption    = "PGL07"
	codeNoFence   = "PGL08"
)

// idleTimeout is idle_in_transaction_session_timeout.
const idleTimeout = "25P03"

// sentinels are for what needs no more than the server's message.
var sentinels = map[string]error{
	codeUnfenced:  ErrUnfenced,
	codeNoTable:   ErrNoTable,
	codeColumn:    ErrColumn,
	codeProtected: ErrProtected,
	codeOption:    ErrInvalidOption,
	codeNoFence:   ErrInvalidFence,
	idleTimeout:   ErrPaused,
}

// Explain turns what a write of the caller's own returned into this package's errors:
// ErrStale (a *StaleError), ErrUnfenced, ErrOtherLock (an *OtherLockError) and ErrPaused.
// The server's error stays in the chain. Any other error, and nil, is returned as it is.
//
// Of a driver other than pgx it reads the SQLSTATE, by a method SQLState() string, and
// not the facts: tokens are 0 then.
func Explain(err error) error {
	if errors.Is(err, ErrStale) || errors.Is(err, ErrOtherLock) {
		return err // explained already
	}
	var known error
	switch code := sqlState(err); code {
	case codeStale:
		var stale StaleError
		known = facts(err, &stale)
	case codeOtherLock:
		var other struct{ Resource string }
		facts(err, &other)
		known = &OtherLockError{Name: other.Resource}
	default:
		known = sentinels[code]
	}
	if known == nil || errors.Is(err, known) {
		return err
	}
	return &explained{known, err}
}

// sqlState returns the server's code for an error, or nothing.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// facts reads the JSON that our own errors carry.
func facts[T any](err error, into *T) *T {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// A detail that somebody else has written leaves the facts empty.
		_ = json.Unmarshal([]byte(pg.Detail), into)
	}
	return into
}

// explained is an error of ours, with the server's behind it.
type explained struct{ known, cause error }

func (e *explained) Error() string   { return fmt.Sprintf("%v (%v)", e.known, e.cause) }
func (e *explained) Unwrap() []error { return []error{e.known, e.cause} }

// explainCall is Explain for a call of our own functions in the schema of that name.
func explainCall(schemaName, doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("%w: %s: %w", ErrNoTransaction, doing, err)
	}
	switch sqlState(err) {
	case "3F000", "42883": // invalid_schema_name; undefined_function: no tables, or those of an earlier version
		return &schema.Error{Kind: ErrSchemaMissing, Name: schemaName, Want: schema.Version, Cause: err}
	case "40001": // serialization_failure: the row has changed since the snapshot
		return fmt.Errorf("%w: %s: %w", ErrSnapshot, doing, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w: %s: %w", ErrPrivilege, doing, err)
	}
	if known := Explain(err); known != err { //nolint:errorlint // whether it is the same value is the question
		return known
	}
	return fmt.Errorf("fencing: %s: %w", doing, err)
}
