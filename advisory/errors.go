package advisory

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

var (
	// ErrNotAcquired: the lock was not granted. The *NotAcquiredError around it has the reason.
	ErrNotAcquired = errs.ErrNotAcquired

	// ErrTimeout: the time set by WithTimeout has passed, or the transaction's own lock_timeout.
	// The error also wraps ErrNotAcquired.
	ErrTimeout = errs.ErrTimeout

	// ErrDeadlock: the server broke a cycle of waiting transactions by refusing this lock (SQLSTATE
	// 40P01). The error also wraps ErrNotAcquired. The transaction still holds its other locks:
	// roll it back and run it again, as Do with WithRetry does. To avoid cycles, lock keys in the
	// same order everywhere, as LockAll does.
	ErrDeadlock = errs.ErrDeadlock

	// ErrTx: the transaction is nil, committed, rolled back, or aborted by an earlier error.
	ErrTx = errs.ErrTx

	// ErrCommitUnknown: the commit was sent and its answer was lost. The transaction is either
	// committed or rolled back.
	ErrCommitUnknown = errors.New("advisory: commit sent but not answered: it may or may not have taken effect")

	// ErrPoolExhausted: no connection of the pool became free in time.
	ErrPoolExhausted = errs.ErrPoolExhausted

	// ErrDriver: the *sql.DB of DoDB does not run on pgx's stdlib driver, so nothing was done.
	ErrDriver = errs.ErrDriver

	// ErrPooled: a pooler in transaction mode shares the server's sessions among its clients, so
	// that a session lock would stay behind in a session that serves others.
	ErrPooled = errors.New("advisory: session locks do not work behind a pooler in transaction mode: " +
		"connect to the server directly, use a lease, or lock in a transaction")

	// ErrLost: the session that held the lock ended before the lock was released.
	ErrLost = errs.ErrLost

	// ErrReleased: the lock was released by its holder.
	ErrReleased = errs.ErrReleased

	// ErrInvalidOption: an option or argument is invalid, or a key was made from an unusable name.
	ErrInvalidOption = errs.ErrInvalidOption
)

// errBusy: another session holds the lock. The exported functions never return it.
var errBusy = errors.New("advisory: busy")

// errNotHeld: the server reports that the session does not hold a lock that it should hold.
var errNotHeld = errors.New("the session did not hold the lock")

// NotAcquiredError says which lock was not granted, and why. errors.Is finds ErrNotAcquired
// and what ended the wait: ErrTimeout, ErrDeadlock, ErrPoolExhausted, context.Canceled,
// context.DeadlineExceeded, the context's cause, or the server's error.
type NotAcquiredError struct {
	Keys   []Key         // all keys of the call
	Waited time.Duration // from the start of the call
	Cause  error         // nil if the call did not wait: another session holds the lock
	Holder *Usage        // a session that held one of the keys when the timeout of Do was over; nil if not known
}

// describeAll returns the keys with their names as a list.
func describeAll(keys []Key) string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.describe()
	}
	return strings.Join(all, ", ")
}

func (e *NotAcquiredError) Error() string {
	locks := describeAll(e.Keys)
	if e.Cause == nil {
		return fmt.Sprintf("advisory: lock %s: another session holds it", locks)
	}
	text := fmt.Sprintf("advisory: lock %s: gave up after %v: %s", locks, e.Waited.Round(time.Millisecond), errs.Reason(e.Cause))
	if e.Holder != nil {
		text += ": held by " + e.Holder.session()
	}
	return text
}

func (e *NotAcquiredError) Unwrap() []error { return errs.Causes(ErrNotAcquired, e.Cause) }
