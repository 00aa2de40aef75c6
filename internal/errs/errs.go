// Package errs defines the sentinel errors that several packages export, and helpers that
// build errors around them. One condition is one value, from whichever package it is imported.
package errs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// The packages that export a sentinel document it.
var (
	ErrNotAcquired   = errors.New("pglock: lock not acquired")
	ErrHeldByCaller  = errors.New("pglock: lock already held by the caller")
	ErrLost          = errors.New("pglock: lock lost")
	ErrReleased      = errors.New("pglock: lock released")
	ErrRevoked       = errors.New("pglock: grant revoked")
	ErrGuarded       = errors.New("pglock: a guarded transaction is still open")
	ErrClosed        = errors.New("pglock: client closed")
	ErrUnavailable   = errors.New("pglock: database unavailable")
	ErrNotFound      = errors.New("pglock: no such lock")
	ErrInvalidName   = Mark(errors.New("pglock: invalid lock name"), ErrInvalidOption)
	ErrInvalidOption = errors.New("pglock: invalid option")
	ErrPrivilege     = errors.New("pglock: missing privilege")
	ErrTimeout       = errors.New("pglock: lock timeout")
	ErrDeadlock      = errors.New("pglock: deadlock: roll back and run the transaction again")
	ErrKind          = errors.New("pglock: another kind of lock")
	ErrTx            = errors.New("pglock: transaction not usable")

	ErrPoolExhausted = errors.New("pglock: pool exhausted")

	ErrDriver = errors.New("pglock: database/sql uses another driver than pgx's: open the database with " +
		`sql.Open("pgx", url) or stdlib.OpenDB, and import github.com/jackc/pgx/v5/stdlib`)
)

// The connection was rejected, not the server unreachable: waiting does not help.
var ErrLogin = errors.New("pglock: login rejected")

// Mark returns an error with the text of err, in which errors.Is also finds kind.
func Mark(err, kind error) error { return &composed{err.Error(), []error{kind, err}} }

// Causes returns the errors that are not nil, for Unwrap.
func Causes(all ...error) []error {
	return slices.DeleteFunc(all, func(err error) bool { return err == nil })
}

// InvalidOption returns an error that wraps ErrInvalidOption and the errors that %w formats.
// Its text is the package's name and the message, as in "advisory: timeout 0s: must be
// positive". The message says what is wrong, and then the rule or the remedy.
func InvalidOption(pkg, format string, args ...any) error {
	return Mark(Errorf(pkg+": "+format, args...), ErrInvalidOption)
}

// Require returns the error of InvalidOption unless ok is true.
func Require(pkg string, ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return InvalidOption(pkg, format, args...)
}

// Apply applies the options of the package's call to c, and refuses one that is nil.
func Apply[C any, O ~func(*C) error](pkg string, c *C, opts []O) error {
	return ApplyBy(pkg, c, opts, func(o O, c *C) error { return o(c) })
}

// ApplyBy is Apply for options that are functions or interfaces, which apply applies.
func ApplyBy[C, O any](pkg string, c *C, opts []O, apply func(O, *C) error) error {
	for _, o := range opts {
		if v := reflect.ValueOf(&o).Elem(); (v.Kind() == reflect.Func || v.Kind() == reflect.Interface) && v.IsNil() {
			return InvalidOption(pkg, "an option is nil: must be set")
		}
		if err := apply(o, c); err != nil {
			return err
		}
	}
	return nil
}

// ContextErr returns why ctx is done: ctx.Err(), followed by context.Cause(ctx) if that is
// another error. It returns nil if ctx is not done.
func ContextErr(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return Errorf("%w: %w", err, cause)
	}
	return context.Cause(ctx)
}

// MaxName is the longest lock name in bytes.
const MaxName = 512

// CheckName returns an error that wraps ErrInvalidName unless name can be that of a lock: 1 to
// MaxName bytes of UTF-8 without NUL.
func CheckName(name string) error {
	if err := CheckText(name, MaxName); err != nil {
		return Errorf("%w: %.64q %w", ErrInvalidName, name, err)
	}
	return nil
}

// CheckText returns an error unless s is 1 to limit bytes of valid UTF-8 without NUL, which
// PostgreSQL stores unchanged. A limit of 0 means no limit. The error names neither a package
// nor what s is: the caller adds both.
func CheckText(s string, limit int) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case limit > 0 && len(s) > limit:
		return fmt.Errorf("has %d bytes: must have at most %d", len(s), limit)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return errors.New("must be valid UTF-8 without NUL")
	}
	return nil
}
