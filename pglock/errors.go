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
	// ErrNotAcquired means that the lock was not granted to this call. TryAcquire returns it in
	// a *BusyError, Acquire in a *WaitError.
	ErrNotAcquired = errs.ErrNotAcquired

	// ErrHeldByCaller means that the context of an acquire carries a lease of the same lock. It
	// comes in a *HeldError.
	ErrHeldByCaller = errs.ErrHeldByCaller

	// ErrTimeout means that the time of WithWait is over.
	ErrTimeout = errs.ErrTimeout

	// ErrLost means that the lease ended before it was released. It is the cause of the lease's
	// Context. The *LostError around it has the reason.
	ErrLost = errs.ErrLost

	// ErrReleased means that the holder has released the lease.
	ErrReleased = errs.ErrReleased

	// ErrRevoked means that Revoke ended the lease. It comes with ErrLost, in a *LostError.
	ErrRevoked = errs.ErrRevoked

	// ErrGuarded means that Revoke has ended a grant, but a guarded transaction that began before
	// can still commit.
	ErrGuarded = errs.ErrGuarded

	// ErrClosed means that the client was closed.
	ErrClosed = errs.ErrClosed

	// ErrUnavailable means that the server could not be reached, did not answer in time, or is
	// read-only.
	ErrUnavailable = errs.ErrUnavailable

	// ErrLogin means that the server has rejected the login: unknown role, wrong password, unknown
	// database, missing right CONNECT, or pg_hba.conf. The error has the server's message. It is not
	// ErrUnavailable, and no call waits for it to pass.
	ErrLogin = errs.ErrLogin

	// ErrKind means that a name is used as another kind of lock: as a semaphore with another number
	// of permits, a readers-writer lock, or a lock with one holder. It comes in a *KindError.
	ErrKind = errs.ErrKind

	// ErrNotFound means that the table has no row with that name.
	ErrNotFound = errs.ErrNotFound

	// ErrInvalidOption means that an argument or an option is invalid, alone or combined with another
	// one. The text names the rule, as for a lock's name: 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidOption = errs.ErrInvalidOption

	// ErrSchema means that the tables do not fit this program. It comes with one of the three
	// errors below, in a *SchemaError with both versions.
	ErrSchema = schema.ErrSchema
	// ErrPrivilege means that the database role lacks a right on the tables.
	ErrPrivilege = errs.ErrPrivilege

	// ErrDeadlock means that the server ended a deadlock by refusing the lock of a DoTx. Run it again.
	ErrDeadlock = advisory.ErrDeadlock

	// ErrStale means that the grant of a guarded write is not the current one. It comes in a *StaleError.
	ErrStale = fencing.ErrStale
)

// errMaxHold is the cause of a loss by WithMaxHold.
var errMaxHold = errors.New("pglock: longest hold reached")

// SchemaError has the version of the tables that was found and the version that is needed.
type SchemaError = schema.Error

// BusyError describes the blocking grant. errors.Is finds ErrNotAcquired.
type BusyError struct {
	Name      string
	Holder    string        // empty if the lock is free but its row is in use, or by WithMinHold
	Token     fencing.Token // of that grant
	Remaining time.Duration // until it expires unless renewed, by the server's clock

	// ThisClient says that the holder is another call of the same client.
	ThisClient bool
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

// WaitError is the error of an Acquire that gave up. errors.Is finds ErrNotAcquired, the cause
// (ErrTimeout, context.Canceled, context.DeadlineExceeded and the context's own cause, ErrClosed,
// or ErrUnavailable), and the last obstacle.
type WaitError struct {
	Name   string // for several names, a text for people; a *BusyError in Last has the one in the way
	Waited time.Duration
	Cause  error // why the wait ended
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

func (e *WaitError) Unwrap() []error {
	all := []error{ErrNotAcquired, e.Cause}
	if e.Last != nil {
		all = append(all, e.Last)
	}
	return all
}

// LostError says which lease was lost, and why. errors.Is finds ErrLost and the cause.
type LostError struct {
	Name   string
	Token  fencing.Token
	Reason string // for people to read
	Cause  error  // of the last renewal, ErrRevoked, or nil
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: %q (token %d): %s", ErrLost, e.Name, e.Token, e.Reason)
	if e.Cause != nil && !errors.Is(e.Cause, errMaxHold) && !errors.Is(e.Cause, ErrRevoked) { // the reason says so
		s += ": last renewal: " + errs.Reason(e.Cause)
	}
	return errs.OneLine(s)
}

func (e *LostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Cause}
}

// KindError says that a name is used as another kind of lock. errors.Is finds ErrKind.
type KindError struct {
	Name   string
	Wanted int // the number of permits that the caller meant; 0: a lock with one holder
	Found  int // the number that it has
}

func (e *KindError) Error() string {
	return fmt.Sprintf("%v: %q is %s, not %s", ErrKind, e.Name, describeKind(e.Found), describeKind(e.Wanted))
}

func (e *KindError) Unwrap() error { return ErrKind }

// describeKind describes the kind of lock with that number of permits.
func describeKind(permits int) string {
	switch permits {
	case 0:
		return "a lock with one holder"
	case allPermits:
		return "a readers-writer lock"
	}
	return fmt.Sprintf("a semaphore with %d permits", permits)
}

func invalidOption(format string, args ...any) error {
	return errs.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}

// NotAcquiredError is the error of DoTx if the lock was not granted. It matches ErrNotAcquired and
// Cause. It is an [advisory.NotAcquiredError], with these fields:
//
//	Keys   []advisory.Key
//	Waited time.Duration
//	Cause  error // ErrTimeout, ErrDeadlock, advisory.ErrPoolExhausted, or ctx's error and cause
type NotAcquiredError = advisory.NotAcquiredError

// StaleError is the error of Guard and Bind if the grant is not the current one. It matches
// ErrStale. It is a [fencing.StaleError], with these fields:
//
//	Resource string // the lock's name
//	Token    Token  // of the refused grant
//	Current  Token  // the newest known, 0 if there is none
type StaleError = fencing.StaleError
