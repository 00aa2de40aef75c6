package pglock

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

var (
	// ErrNotAcquired means that the lock was not granted. BusyError and WaitError wrap it.
	ErrNotAcquired = errs.ErrNotAcquired
	// ErrHeldByCaller means that an acquire's context carries a lease of the lock (see HeldError).
	ErrHeldByCaller = errs.ErrHeldByCaller
	// ErrTimeout means that the call has waited as long as WithWait allows.
	ErrTimeout = errs.ErrTimeout
	// ErrLost means that the lease ended before it was released, as the *LostError describes.
	ErrLost = errs.ErrLost
	// ErrReleased means that the holder has released the lease.
	ErrReleased = errs.ErrReleased
	// ErrRevoked means that Revoke ended the lease, whose *LostError also wraps ErrLost.
	ErrRevoked = errs.ErrRevoked
	// ErrGuarded means that a guarded transaction of a grant that Revoke ended can still commit.
	ErrGuarded = errs.ErrGuarded

	// ErrClosed means that the client was closed.
	ErrClosed = errs.ErrClosed
	// ErrUnavailable means that the server is unreachable, read-only, or too slow to answer.
	ErrUnavailable = errs.ErrUnavailable
	// ErrLogin means that the server has rejected the login, for the reason in its message. It does
	// not wrap ErrUnavailable, and no call retries it, though leader.Run and schedule.Job.Run do.
	ErrLogin = errs.ErrLogin
	// ErrKind means that a name has another kind or number of permits, as the *KindError describes.
	ErrKind = errs.ErrKind
	// ErrNotFound means that the table has no row with that name.
	ErrNotFound = errs.ErrNotFound
	// ErrInvalidOption means that an argument or an option is invalid, alone or combined with
	// another. The text names the rule, as for a lock's name: 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidOption = errs.ErrInvalidOption
	// ErrSchema means that the tables are missing, outdated or too new, as the *SchemaError
	// describes, or that locks are not safe on the server, for the reason in the text.
	ErrSchema = schema.ErrSchema
	// ErrPrivilege means that the database role lacks a right on the tables.
	ErrPrivilege = errs.ErrPrivilege
	// ErrDeadlock means that calls waited for each other in the cycle that the text has, which was
	// broken by this one: a DoTx, or a wait under a context that carries another lease. Release
	// what the call holds, as Do does when its function returns the error, and run it again.
	ErrDeadlock = advisory.ErrDeadlock
	// ErrStale means that the grant of a guarded write is not current (see StaleError).
	ErrStale = fencing.ErrStale
)

// errMaxHold is the cause of a loss by WithMaxHold.
var errMaxHold = errors.New("pglock: longest hold reached")

// errHandedOver is the end of a lease that HandOver was called on.
var errHandedOver = errs.Errorf("%w: handed over to another process", ErrReleased)

// SchemaError has the version of the tables, and that of this program.
type SchemaError = schema.Error

// BusyError describes the blocking grant. It wraps ErrNotAcquired.
type BusyError struct {
	Name       string
	Holder     string        // empty if the lock is free but its row is in use, or because of WithMinHold
	Token      fencing.Token // of that grant
	Remaining  time.Duration // until it expires unless renewed, by the server's clock
	ThisClient bool          // the holder is another call of the same client
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("pglock: acquire %q: %s", e.Name, e.reason())
}

// reason returns the part of the text after the operation.
func (e *BusyError) reason() string {
	switch {
	case e.Holder == "" && e.Remaining > 0:
		return fmt.Sprintf("it was released (token %d), and WithMinHold keeps it locked for another %v", e.Token, e.Remaining.Round(time.Millisecond))
	case e.Holder == "":
		return "it is changing hands, or a guarded transaction still uses it"
	}
	by := e.Holder
	if e.ThisClient {
		by = "this client, " + e.Holder
	}
	return errs.OneLine(fmt.Sprintf("held by %s (token %d), for another %v unless renewed", by, e.Token, e.Remaining.Round(time.Millisecond)))
}

func (e *BusyError) Unwrap() error { return ErrNotAcquired }

// WaitError is the error of an Acquire that gave up. It wraps ErrNotAcquired, the cause, and the
// last obstacle.
type WaitError struct {
	Name   string // of several names, their display name; a *BusyError in Last names the blocking grant
	Waited time.Duration
	Cause  error // ErrTimeout, ErrDeadlock, ErrClosed, ErrUnavailable, or the error and cause of ctx
	Last   error // the last obstacle: a *BusyError, an error of the server, or nil
}

func (e *WaitError) Error() string {
	s := fmt.Sprintf("pglock: acquire %q: gave up after %v: %s", e.Name, e.Waited.Round(time.Millisecond), errs.Reason(e.Cause))
	var busy *BusyError
	switch {
	case e.Last == nil, errors.Is(e.Last, ErrUnavailable) && errors.Is(e.Cause, ErrUnavailable):
	case errors.As(e.Last, &busy) && busy.Name != e.Name: // one of several
		s += fmt.Sprintf(": %q: %s", busy.Name, busy.reason())
	case errors.As(e.Last, &busy):
		s += ": " + busy.reason()
	default:
		s += ": last answer: " + errs.Reason(e.Last)
	}
	return s
}

func (e *WaitError) Unwrap() []error { return errs.Causes(ErrNotAcquired, e.Cause, e.Last) }

// LostError explains the loss of a lease, and wraps ErrLost and the cause.
type LostError struct {
	Name   string
	Token  fencing.Token
	Reason string // text for logs
	Cause  error  // of the last renewal, ErrRevoked, or nil
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: %q (token %d): %s", ErrLost, e.Name, e.Token, e.Reason)
	if e.Cause != nil && !errors.Is(e.Cause, errMaxHold) && !errors.Is(e.Cause, ErrRevoked) { // the reason says so
		s += ": last renewal: " + errs.Reason(e.Cause)
	}
	return errs.OneLine(s)
}

func (e *LostError) Unwrap() []error { return errs.Causes(ErrLost, e.Cause) }

// require returns an error with ErrInvalidOption unless ok is true.
func require(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return invalidOption(format, args...)
}

func invalidOption(format string, args ...any) error {
	return errs.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}

// NotAcquiredError is an [advisory.NotAcquiredError], the error of a DoTx that was not granted its
// lock. It wraps ErrNotAcquired and its Cause: ErrTimeout, ErrDeadlock, advisory.ErrPoolExhausted,
// or ctx's error and cause.
type NotAcquiredError = advisory.NotAcquiredError

// StaleError is a [fencing.StaleError], the error of Guard and Bind if the grant is not current.
// Its Resource is the lock's name, and it wraps ErrStale.
type StaleError = fencing.StaleError
