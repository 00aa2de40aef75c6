package gooselock

import (
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

var (
	// ErrNotAcquired: another session or process holds the lock.
	ErrNotAcquired = pglock.ErrNotAcquired

	// ErrTimeout: the time of WithTimeout is over. It comes with ErrNotAcquired.
	ErrTimeout = pglock.ErrTimeout

	// ErrLost: the lock was lost while goose migrated.
	ErrLost = pglock.ErrLost

	// ErrInvalidOption: an option is invalid. The error names the rule.
	ErrInvalidOption = pglock.ErrInvalidOption
)

// BusyError reports that a wait for a session lock ended, and which session of the server holds the
// lock. errors.Is finds ErrNotAcquired and the cause.
type BusyError struct {
	Name   string
	PID    int    // of the server process; 0 if it is not known
	Holder string // its application_name, empty if it has none or the role may not see it
	Waited time.Duration
	Cause  error
}

func (e *BusyError) Error() string {
	holder := "an unknown session"
	if e.PID != 0 {
		holder = fmt.Sprintf("server process %d", e.PID)
	}
	if e.Holder != "" {
		holder += fmt.Sprintf(" (%s)", e.Holder)
	}
	return fmt.Sprintf("gooselock: acquire %q: held by %s: gave up after %v: %s", e.Name, errs.OneLine(holder), e.Waited.Round(time.Millisecond), errs.Reason(e.Cause))
}

// Unwrap makes errors.Is find ErrNotAcquired and the cause.
func (e *BusyError) Unwrap() []error { return []error{ErrNotAcquired, e.Cause} }
