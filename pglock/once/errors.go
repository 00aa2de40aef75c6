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

// Answers about a key.
var (
	// ErrMismatch: the key was used with another fingerprint, so for another request. Nothing was
	// done.
	ErrMismatch = errors.New("once: the key was used for another request")

	// ErrInProgress: another call with the key has not ended. Try again later, or allow a longer
	// wait.
	ErrInProgress = errors.New("once: another call with the key is in progress")

	// ErrOutcomeUnknown: the effect has begun, and nothing says whether it happened. It comes in an
	// *UnknownError.
	ErrOutcomeUnknown = errors.New("once: the effect was started, and its outcome is unknown")

	// ErrFailed: the effect has failed for good. It comes in a *FailedError, from the first call
	// and from each repetition.
	ErrFailed = errors.New("once: the effect failed")

	// ErrNoResult: the effect happened, and its result could not be stored.
	ErrNoResult = errors.New("once: the effect happened, and its result was not stored")

	// ErrResultTooLarge: the result has more than MaxResult bytes. From Do it comes with ErrNoResult.
	ErrResultTooLarge = errors.New("once: the result is too large")

	// ErrNotRecorded: the effect happened, and the record that says so failed. It comes with
	// ErrOutcomeUnknown, because that is what the next call finds.
	ErrNotRecorded = errors.New("once: the effect happened, and this could not be recorded")

	// ErrNotFound: no call has used the key, or its record has expired.
	ErrNotFound = errors.New("once: no such key")
)

// Wrong use, and failures of the database. They are the same values as in the other packages.
var (
	// ErrInvalidKey: a key must be 1 to MaxKey bytes of UTF-8 without NUL.
	ErrInvalidKey = errors.New("once: invalid key")

	// ErrInvalidOption: an option or argument is invalid. The text names the rule.
	ErrInvalidOption = errs.ErrInvalidOption

	// ErrSnapshot: at REPEATABLE READ or SERIALIZABLE, another transaction has used the key since
	// this one's snapshot. Roll back and run the whole transaction again: it then finds the result.
	ErrSnapshot = fencing.ErrSnapshot

	// ErrTx: the transaction is nil, has ended, or was aborted by an earlier error.
	ErrTx = errs.ErrTx

	// ErrTimeout: the time of WithWait is over. It comes with ErrInProgress.
	ErrTimeout = errs.ErrTimeout

	// ErrDeadlock: two transactions wait for each other's keys, and the server chose this one to
	// fail. Roll back and run the transaction again.
	ErrDeadlock = errs.ErrDeadlock

	// ErrPrivilege: the role lacks the rights that migrations.WithUser grants.
	ErrPrivilege = errs.ErrPrivilege

	// ErrSchemaMissing: the schema has no table of keys.
	ErrSchemaMissing = schema.ErrMissing
)

// UnknownError says which attempt has begun without a known outcome. errors.Is finds
// ErrOutcomeUnknown and the cause.
type UnknownError struct {
	Key       string
	Token     fencing.Token // of the attempt
	Holder    string        // of the attempt's lease
	StartedAt time.Time     // by the server's clock
	Cause     error         // the error of this call's fn or lookup function; nil if an earlier call began
}

func (e *UnknownError) Error() string {
	s := fmt.Sprintf("%v: key %.64q, started by %s with token %d", ErrOutcomeUnknown, e.Key, e.Holder, e.Token)
	if e.Cause != nil {
		return s + ": " + e.Cause.Error()
	}
	return s + ": find out whether it happened, or set a rule with WithLookup or WithRetry"
}

// Unwrap makes errors.Is find ErrOutcomeUnknown and the cause.
func (e *UnknownError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrOutcomeUnknown}
	}
	return []error{ErrOutcomeUnknown, conceal(e.Cause)}
}

// FailedError is the answer of an effect that has failed for good: see Failed. errors.Is finds
// ErrFailed and, in the first call only, the cause.
type FailedError struct {
	Key   string
	Text  string // of the error that fn marked with Failed
	Cause error  // that error; nil in a repeated call
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%v: key %.64q: %s", ErrFailed, e.Key, e.Text)
}

// Unwrap makes errors.Is find ErrFailed and the cause.
func (e *FailedError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrFailed}
	}
	return []error{ErrFailed, conceal(e.Cause)}
}

// NotDone marks an error of fn: the effect has certainly not happened and will not happen. Do then
// deletes the record of the key, so that the next call runs fn. It returns nil for nil.
func NotDone(err error) error { return mark(err, notDone) }

// Failed marks an error of fn: the effect has failed for good, and that is the answer. Do stores
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

// marked is an error of fn with a class.
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

// conceal returns err without its class.
func conceal(err error) error {
	if classOf(err) == unknown {
		return err
	}
	return concealed{err}
}

// concealed hides the class of an error that a call returns. The fn of an outer call that passes the
// error on would otherwise say something about its own effect.
type concealed struct{ err error }

func (c concealed) Error() string        { return c.err.Error() }
func (c concealed) Is(target error) bool { return errors.Is(c.err, target) }
func (c concealed) As(target any) bool {
	_, class := target.(**marked)
	return !class && errors.As(c.err, target)
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("once", format, args...)
}

// explain turns a server's error into this package's errors.
func explain(ctx context.Context, operation, key, schemaName string, err error) error {
	where := fmt.Sprintf("once: %s %.64q", operation, key)
	var timeoutAt time.Time
	switch state := pgtx.SQLState(err); {
	case pgtx.Unusable(err):
		return errs.Errorf("%s: %w: %w", where, ErrTx, err)
	case state == pgtx.SerializationFailure:
		return errs.Errorf("%s: %w: roll back and run the transaction again: %w", where, ErrSnapshot, err)
	case state == pgtx.InsufficientPrivilege:
		return errs.Errorf("%s: %w: %w", where, ErrPrivilege, err)
	case state == pgtx.InvalidSchemaName, state == pgtx.UndefinedFunction, state == pgtx.UndefinedTable:
		return &schema.Error{Kind: ErrSchemaMissing, Name: schemaName, Want: schema.Version, Cause: err}
	case state == pgtx.LockNotAvailable && ctx.Err() == nil:
		return errs.Errorf("%s: %w: %w: %w", where, ErrInProgress, ErrTimeout, err)
	}
	if cause := pgtx.WaitCause(ctx, err, timeoutAt); cause != nil {
		return errs.Errorf("%s: %w", where, cause)
	}
	return errs.Errorf("%s: %w", where, fencing.Explain(err))
}
