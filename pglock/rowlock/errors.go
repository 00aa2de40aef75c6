package rowlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/condition"
)

var (
	// ErrNotAcquired: not all rows could be locked. The *NotAcquiredError around it
	// tells why.
	ErrNotAcquired = condition.ErrNotAcquired

	// ErrTimeout: the time given by WithTimeout has passed, or the transaction's own
	// lock_timeout. It comes with ErrNotAcquired.
	ErrTimeout = advisory.ErrTimeout

	// ErrDeadlock: the server broke a cycle of transactions that wait for each other by
	// refusing this call (SQLSTATE 40P01). The transaction's other locks are still held: roll it
	// back and run it again. It comes with ErrNotAcquired.
	ErrDeadlock = advisory.ErrDeadlock

	// ErrTx: the transaction is nil, ended, or aborted by an earlier error.
	ErrTx = advisory.ErrTx

	// ErrMissing: there is no row of a key. The *MissingError or *ShortError around it tells which.
	ErrMissing = errors.New("rowlock: no such row")

	// ErrShort: the stock does not suffice. The *ShortError around it tells of what.
	ErrShort = errors.New("rowlock: not enough in stock")

	// ErrTable: the table, or a column, does not exist. The *TableError around it tells which.
	ErrTable = errors.New("rowlock: no such table or column")

	// ErrRange: a key or quantity is more than its column can hold.
	ErrRange = errors.New("rowlock: out of the column's range")

	// ErrPrivilege: the role lacks a right. Row locks need UPDATE (on one column at least)
	// beside SELECT.
	ErrPrivilege = condition.ErrPrivilege

	// ErrInvalidOption: an option or argument makes no sense, alone or with another one.
	ErrInvalidOption = condition.ErrInvalidOption
)

// NotAcquiredError tells which table's rows were not locked, and why. errors.Is finds
// ErrNotAcquired and what ended the waiting: ErrTimeout, ErrDeadlock, context.Canceled,
// context.DeadlineExceeded, the context's own cause, or the server's error.
type NotAcquiredError struct {
	Table  string // quoted
	Waited time.Duration
	Cause  error // nil for NoWait: somebody else holds a row
}

func (e *NotAcquiredError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("%v: a row of %s is locked by somebody else", ErrNotAcquired, e.Table)
	}
	return fmt.Sprintf("%v: rows of %s after %v: %v", ErrNotAcquired, e.Table, e.Waited.Round(time.Millisecond), e.Cause)
}

// Unwrap makes errors.Is find the sentinel and the cause.
func (e *NotAcquiredError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotAcquired}
	}
	return []error{ErrNotAcquired, e.Cause}
}

// MissingError tells which keys have no row, or none that Where leaves.
type MissingError struct {
	Table string // quoted
	Keys  []any  // of the type given, in the order given
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%v: of %s with %v", ErrMissing, e.Table, e.Keys)
}

// Unwrap makes errors.Is find ErrMissing.
func (e *MissingError) Unwrap() error { return ErrMissing }

// ShortError tells everything that kept Reserve from reserving. Nothing was changed.
type ShortError struct {
	Table string     // quoted
	Lines []Shortage // in the order given; the lines that could be served are not among them
}

// Shortage is a line that can't be served.
type Shortage struct {
	Key       any // of the type given
	Wanted    Decimal
	Available Decimal
	Missing   bool // there is no row of that key; Available is 0
}

func (e *ShortError) Error() string {
	var b strings.Builder
	for i, l := range e.Lines {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%v: %s of %s", l.Key, l.Available, l.Wanted)
		if l.Missing {
			b.WriteString(" (no such row)")
		}
	}
	return fmt.Sprintf("%v: %s: %s", ErrShort, e.Table, b.String())
}

// Unwrap makes errors.Is find ErrShort, and ErrMissing if a row is missing.
func (e *ShortError) Unwrap() []error {
	for _, l := range e.Lines {
		if l.Missing {
			return []error{ErrShort, ErrMissing}
		}
	}
	return []error{ErrShort}
}

// TableError tells what does not exist.
type TableError struct {
	Table   string   // quoted
	Columns []string // that the table lacks; none if there is no such table
	Cause   error    // what the server said
}

func (e *TableError) Error() string {
	if len(e.Columns) == 0 {
		return fmt.Sprintf("%v: table %s: %v", ErrTable, e.Table, e.Cause)
	}
	return fmt.Sprintf("%v: %s has no column %q: %v", ErrTable, e.Table, e.Columns, e.Cause)
}

// Unwrap makes errors.Is find ErrTable and the cause.
func (e *TableError) Unwrap() []error { return []error{ErrTable, e.Cause} }

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: rowlock: "+format, append([]any{ErrInvalidOption}, args...)...)
}

// SQLSTATEs that mean something to this package.
const (
	lockNotAvailable  = "55P03"
	deadlockDetected  = "40P01"
	queryCanceled     = "57014"
	failedTransaction = "25P02" // in_failed_sql_transaction
	noTransaction     = "25P01" // no_active_sql_transaction
	undefinedTable    = "42P01"
	undefinedColumn   = "42703"
	undefinedSchema   = "3F000"
	outOfRange        = "22003" // numeric_value_out_of_range
	noPrivilege       = "42501"
	dataException     = "22" // a class
)

// sqlState returns the code of the server's error, "" if it is none.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
