package rowlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

// Other errors are those of package advisory: ErrNotAcquired, with a *NotAcquiredError, ErrTimeout
// for the transaction's own lock_timeout, ErrDeadlock, ErrTx and ErrInvalidOption; and
// pglock.ErrPrivilege, for a role that lacks SELECT, or UPDATE on a column.
var (
	// ErrMissing: a key has no row. The *MissingError around it lists the keys.
	ErrMissing = errors.New("rowlock: no such row")

	// ErrShort: the stock does not suffice. The *ShortError around it lists the lines.
	ErrShort = errors.New("rowlock: not enough in stock")

	// ErrRange: a key or quantity exceeds the range of its column.
	ErrRange = errors.New("rowlock: value out of the column's range")
)

// NotAcquiredError says which rows were not locked, and why: advisory.ErrTimeout or ErrDeadlock,
// the context's error and cause, or the server's error. After a deadlock the transaction still
// holds its other locks: roll it back and run it again.
type NotAcquiredError struct {
	Table  string        // quoted
	Waited time.Duration // from the start of the call
	Cause  error         // nil with NoWait: another transaction holds a row
}

func (e *NotAcquiredError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("rowlock: rows of %s not locked: another transaction holds one", e.Table)
	}
	return fmt.Sprintf("rowlock: rows of %s not locked after %v: %v", e.Table, e.Waited.Round(time.Millisecond), e.Cause)
}

func (e *NotAcquiredError) Unwrap() []error { return errs.Causes(errs.ErrNotAcquired, e.Cause) }

// MissingError lists the keys that have no row, or no row that Where selects.
type MissingError struct {
	Table string // quoted
	Keys  []any  // of the type passed, in the order passed
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("rowlock: table %s has no row with key %v", e.Table, e.Keys)
}

func (e *MissingError) Unwrap() error { return ErrMissing }

// ShortError lists every line that Reserve could not serve. Nothing was changed.
type ShortError struct {
	Table string     // quoted
	Lines []Shortage // in the order passed, without the lines that could be served
}

// Shortage is a line that can't be served.
type Shortage struct {
	Key       any // of the type passed
	Wanted    Decimal
	Available Decimal
	Missing   bool // the key has no row; Available is 0
}

func (e *ShortError) Error() string {
	lines := make([]string, len(e.Lines))
	for i, l := range e.Lines {
		lines[i] = fmt.Sprintf("%v: %s of %s", l.Key, l.Available, l.Wanted)
		if l.Missing {
			lines[i] += " (no such row)"
		}
	}
	return fmt.Sprintf("rowlock: not enough in stock %s: %s", e.Table, strings.Join(lines, ", "))
}

func (e *ShortError) Unwrap() error { return ErrShort }
