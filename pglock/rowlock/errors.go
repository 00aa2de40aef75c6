package rowlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

var (
	// ErrNotAcquired: not all rows could be locked. The *NotAcquiredError around it has the
	// reason.
	ErrNotAcquired = errs.ErrNotAcquired

	// ErrTimeout: the time set by WithTimeout has passed, or the transaction's own lock_timeout.
	// It comes with ErrNotAcquired.
	ErrTimeout = errs.ErrTimeout

	// ErrDeadlock: the server broke a cycle of waiting transactions by refusing this call
	// (SQLSTATE 40P01). It comes with ErrNotAcquired. The transaction still holds its other
	// locks: roll it back and run it again.
	ErrDeadlock = errs.ErrDeadlock

	// ErrTx: the transaction is nil, has ended, or was aborted by an earlier error.
	ErrTx = errs.ErrTx

	// ErrMissing: a key has no row. The *MissingError or *ShortError around it lists the keys.
	ErrMissing = errors.New("rowlock: no such row")

	// ErrShort: the stock does not suffice. The *ShortError around it lists the lines.
	ErrShort = errors.New("rowlock: not enough in stock")

	// ErrTable: the table or a column does not exist. The *TableError around it lists the
	// columns.
	ErrTable = errors.New("rowlock: no such table or column")

	// ErrRange: a key or quantity exceeds the range of its column.
	ErrRange = errors.New("rowlock: value out of the column's range")

	// ErrPrivilege: the role lacks a privilege. Row locks need SELECT, and UPDATE on at least one
	// column.
	ErrPrivilege = errs.ErrPrivilege

	// ErrInvalidOption: an option or argument is invalid, by itself or together with another.
	ErrInvalidOption = errs.ErrInvalidOption
)

// NotAcquiredError says which table's rows were not locked, and why. errors.Is finds
// ErrNotAcquired and what ended the wait: ErrTimeout, ErrDeadlock, context.Canceled,
// context.DeadlineExceeded, the context's cause, or the server's error.
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

// Unwrap returns ErrNotAcquired and the cause.
func (e *NotAcquiredError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotAcquired}
	}
	return []error{ErrNotAcquired, e.Cause}
}

// MissingError lists the keys that have no row, or no row that Where selects.
type MissingError struct {
	Table string // quoted
	Keys  []any  // of the type passed, in the order passed
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("rowlock: table %s has no row with key %v", e.Table, e.Keys)
}

// Unwrap returns ErrMissing.
func (e *MissingError) Unwrap() error { return ErrMissing }

// ShortError lists every line that Reserve could not serve. Nothing was changed.
type ShortError struct {
	Table string     // quoted
	Lines []Shortage // in the order passed, without the lines that could be served
}

// Line returns the shortage of key. It reports false if that line could be served.
func (e *ShortError) Line(key any) (Shortage, bool) {
	for _, l := range e.Lines {
		if l.Key == key {
			return l, true
		}
	}
	return Shortage{}, false
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

// Unwrap returns ErrShort, and ErrMissing if a row is missing.
func (e *ShortError) Unwrap() []error {
	for _, l := range e.Lines {
		if l.Missing {
			return []error{ErrShort, ErrMissing}
		}
	}
	return []error{ErrShort}
}

// TableError says what does not exist.
type TableError struct {
	Table   string   // quoted
	Columns []string // that the table lacks; empty if there is no such table
	Hint    string   // what to write instead, if a name contains a dot; otherwise empty
	Cause   error    // the server's error
}

func (e *TableError) Error() string {
	what := fmt.Sprintf("rowlock: no table %s", e.Table)
	if len(e.Columns) > 0 {
		what = fmt.Sprintf("rowlock: table %s has no column %q", e.Table, e.Columns)
	}
	if e.Hint != "" {
		what += ": " + e.Hint
	}
	return fmt.Sprintf("%s: %v", what, e.Cause)
}

// Unwrap returns ErrTable and the cause.
func (e *TableError) Unwrap() []error { return []error{ErrTable, e.Cause} }

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("rowlock", format, args...)
}
