package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// Answers about a key. Wrong use and failures of the database are errors of other packages:
// pglock.ErrInvalidOption, ErrTimeout, ErrDeadlock and ErrPrivilege, fencing.ErrSchemaMissing, and
// in transactions fencing.ErrSnapshot and advisory.ErrTx.
var (
	// ErrMismatch: the key was used with another fingerprint, so for another request, and nothing
	// was done.
	ErrMismatch = errors.New("once: the key was used for another request")

	// ErrInProgress: another call with the key has not ended. Try again later, or allow a longer
	// wait.
	ErrInProgress = errors.New("once: another call with the key is in progress")

	// ErrOutcomeUnknown: the effect has begun, and nothing says whether it happened. An
	// *UnknownError wraps it.
	ErrOutcomeUnknown = errors.New("once: the effect was started, and its outcome is unknown")

	// ErrFailed: the effect has failed permanently. It comes in a *FailedError, from the first call
	// and from each repetition.
	ErrFailed = errors.New("once: the effect failed")

	// ErrNoResult: the effect happened, and its result could not be stored.
	ErrNoResult = errors.New("once: the effect happened, and its result was not stored")

	// ErrResultTooLarge: the result has more than MaxResult bytes. From Do the error also wraps
	// ErrNoResult.
	ErrResultTooLarge = errors.New("once: the result is too large")

	// ErrNotRecorded: the effect happened, and recording it failed. The error also wraps
	// ErrOutcomeUnknown, because the next call finds an unknown outcome.
	ErrNotRecorded = errors.New("once: the effect happened, and this could not be recorded")

	// ErrNotFound: no call has used the key, or its record has expired.
	ErrNotFound = errors.New("once: no such key")

	// ErrInvalidKey: a key must be 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidKey = errors.New("once: invalid key")
)

// UnknownError says which attempt has begun without a known outcome. errors.Is finds
// ErrOutcomeUnknown and the cause.
type UnknownError struct {
	Started
	Cause error // the error of this call's fn or lookup function; nil if an earlier call began
}

func (e *UnknownError) Error() string {
	s := fmt.Sprintf("%v: key %.64q, started by %s with token %d", ErrOutcomeUnknown, e.Key, e.Holder, e.Token)
	if e.Cause != nil {
		return s + ": " + e.Cause.Error()
	}
	return s + ": find out whether it happened, or set a rule with WithLookup or WithRetry"
}

func (e *UnknownError) Unwrap() []error { return errs.Causes(ErrOutcomeUnknown, conceal(e.Cause)) }

// FailedError is the answer of an effect that has failed permanently: see Failed. errors.Is finds
// ErrFailed and, in the first call only, the cause.
type FailedError struct {
	Key   string
	Text  string // of the error that fn marked with Failed
	Cause error  // that error; nil in a repeated call
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%v: key %.64q: %s", ErrFailed, e.Key, e.Text)
}

func (e *FailedError) Unwrap() []error { return errs.Causes(ErrFailed, conceal(e.Cause)) }

// NotDone marks an error of fn: the effect has certainly not happened and will not happen. Do then
// deletes the record of the key, so that the next call runs fn. For nil it returns nil.
func NotDone(err error) error { return mark(err, notDone) }

// Failed marks an error of fn: the effect has failed permanently, and that is the answer. Do stores
// the error's text, and each repeated call returns it in a *FailedError. It returns nil for nil.
func Failed(err error) error { return mark(err, failed) }

// class says what an error of fn means for the effect.
type class int

const (
	unknown  class = iota
	notDone        // by NotDone
	failed         // by Failed
	noResult       // it happened, and encode has failed
)

func mark(err error, c class) error {
	if err == nil {
		return nil
	}
	return &marked{err, c}
}

type marked struct {
	error
	class class
}

func (m *marked) Unwrap() error { return m.error }

func classOf(err error) class {
	var m *marked
	if errors.As(err, &m) {
		return m.class
	}
	return unknown
}

// conceal hides the class of an error that a call returns, because errors.As finds the outermost
// one. The fn of an outer call that passes the error on would otherwise say something about its own
// effect.
func conceal(err error) error {
	if classOf(err) == unknown {
		return err
	}
	return mark(err, unknown)
}

func explain(ctx context.Context, operation, key, schemaName string, err error) error {
	where := fmt.Sprintf("once: %s %.64q", operation, key)
	switch state := pgtx.SQLState(err); {
	case pgtx.Unusable(err):
		return errs.Errorf("%s: %w: %w", where, errs.ErrTx, err)
	case state == pgtx.SerializationFailure:
		return errs.Errorf("%s: %w: roll back and run the transaction again: %w", where, fencing.ErrSnapshot, err)
	case state == pgtx.InsufficientPrivilege:
		return schema.Privilege(where, schemaName, err)
	case state == pgtx.InvalidSchemaName, state == pgtx.UndefinedFunction, state == pgtx.UndefinedTable:
		return &schema.Error{Kind: schema.ErrMissing, Name: schemaName, Want: schema.Version, Cause: err}
	case state == pgtx.LockNotAvailable && ctx.Err() == nil:
		return errs.Errorf("%s: %w: %w: %w", where, ErrInProgress, errs.ErrTimeout, err)
	}
	if cause := pgtx.WaitCause(ctx, err, time.Time{}); cause != nil {
		return errs.Errorf("%s: %w", where, cause)
	}
	return errs.Errorf("%s: %w", where, fencing.Explain(err))
}
