package leasetable

import (
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/condition"
	"github.com/pglock/pglock-go/internal/schema"
)

var (
	// ErrNotAcquired: the lock was not granted to this caller. TryAcquire puts a
	// *BusyError around it, Acquire a *WaitError.
	ErrNotAcquired = condition.ErrNotAcquired

	// ErrLost: the lease ended before it was released. It is the cause of the
	// lease's Context. The *LostError around it tells why.
	ErrLost = condition.ErrLost

	// ErrReleased: the lease was released by its holder.
	ErrReleased = condition.ErrReleased

	// ErrClosed: the client was closed.
	ErrClosed = condition.ErrClosed

	// ErrUnavailable: the server could not be reached, or not for long enough
	// to answer, or it takes no writes.
	ErrUnavailable = condition.ErrUnavailable

	// ErrNotFound: the table has no row for that name.
	ErrNotFound = condition.ErrNotFound

	// ErrInvalidName: a lock's name is 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidName = condition.ErrInvalidName

	// ErrInvalidOption: an option makes no sense, alone or with another one.
	ErrInvalidOption = condition.ErrInvalidOption

	// ErrSchema: the tables do not fit this program. One of the three below
	// comes with it, and the *SchemaError around them carries both versions.
	ErrSchema = schema.ErrSchema
	// ErrSchemaMissing: there are no tables in that schema.
	ErrSchemaMissing = schema.ErrMissing
	// ErrSchemaOutdated: the tables were made by an earlier version.
	ErrSchemaOutdated = schema.ErrOutdated
	// ErrSchemaNewer: the tables were made by a later version.
	ErrSchemaNewer = schema.ErrNewer

	// ErrInvalidSchema: PostgreSQL would not keep that schema name as it is.
	ErrInvalidSchema = schema.ErrInvalidName

	// ErrPrivilege: the database role lacks a right on the tables.
	ErrPrivilege = condition.ErrPrivilege
)

// SchemaError tells which version of the tables was found and which is needed.
type SchemaError = schema.Error

// BusyError tells who holds the lock.
type BusyError struct {
	Name      string
	Holder    string        // empty while the lock is free and only its row is in use
	Token     fencing.Token // of the grant in the way
	Remaining time.Duration // until it ends if its holder doesn't renew it, by the server's clock
}

func (e *BusyError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("%v: %q is changing hands, or a guarded transaction still uses it", ErrNotAcquired, e.Name)
	}
	return fmt.Sprintf("%v: %q is held by %s (token %d) for another %v unless renewed",
		ErrNotAcquired, e.Name, e.Holder, e.Token, e.Remaining.Round(time.Millisecond))
}

// Unwrap makes errors.Is find ErrNotAcquired.
func (e *BusyError) Unwrap() error { return ErrNotAcquired }

// WaitError tells why Acquire gave up. errors.Is finds ErrNotAcquired, what
// ended the waiting (context.Canceled, context.DeadlineExceeded and the context's
// own cause, ErrClosed or ErrUnavailable), and what stood in the way.
type WaitError struct {
	Name   string
	Waited time.Duration
	Cause  error // what ended the waiting
	Last   error // what stood in the way last: a *BusyError, a server's error, or nil
}

func (e *WaitError) Error() string {
	s := fmt.Sprintf("%v: gave up on %q after %v: %v", ErrNotAcquired, e.Name, e.Waited.Round(time.Millisecond), e.Cause)
	if e.Last != nil {
		s += fmt.Sprintf(" (last answer: %v)", e.Last)
	}
	return s
}

// Unwrap makes errors.Is and errors.As find the sentinel and both causes.
func (e *WaitError) Unwrap() []error {
	all := []error{ErrNotAcquired, e.Cause}
	if e.Last != nil {
		all = append(all, e.Last)
	}
	return all
}

// LostError tells which lease was lost, and why.
type LostError struct {
	Name   string
	Token  fencing.Token
	Reason string // for people
	Cause  error  // the last renewal's failure, or nil
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: %q (token %d): %s", ErrLost, e.Name, e.Token, e.Reason)
	if e.Cause != nil {
		s += fmt.Sprintf(": last renewal: %v", e.Cause)
	}
	return s
}

// Unwrap makes errors.Is find ErrLost and the cause.
func (e *LostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Cause}
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}
