package advisory

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/condition"
)

var (
	// ErrNotAcquired: the lock was not granted to this caller. The
	// *NotAcquiredError around it tells why.
	ErrNotAcquired = condition.ErrNotAcquired

	// ErrTimeout: the time given by WithTimeout has passed, or the transaction's own
	// lock_timeout. It comes with ErrNotAcquired.
	ErrTimeout = errors.New("advisory: lock time-out")

	// ErrDeadlock: the server broke a cycle of transactions that wait for each other
	// (SQLSTATE 40P01) by refusing this lock. The other locks of the transaction are
	// still held: roll it back and run it again, and take locks in one order everywhere
	// (LockAll does). Do with WithRetry does that. It comes with ErrNotAcquired.
	ErrDeadlock = errors.New("advisory: deadlock: roll back and run the transaction again")

	// ErrTx: the transaction is committed, rolled back, or aborted by an earlier
	// error, so that nothing can be locked in it.
	ErrTx = errors.New("advisory: no usable transaction")

	// ErrCommitUnknown: the commit was sent and its answer was lost. It may have
	// been carried out or not.
	ErrCommitUnknown = errors.New("advisory: the commit was sent and not answered: it may have been carried out")

	// ErrPoolExhausted: no connection of the pool became free in time.
	ErrPoolExhausted = errors.New("advisory: pool exhausted")

	// ErrPooled: a pooler shares the server's sessions between clients, so that a
	// session's lock would stay behind in a session that serves others.
	ErrPooled = errors.New("advisory: session locks do not work behind a pooler in transaction mode: connect past it, use a lease, or lock in a transaction")

	// ErrLost: the session that held the lock ended before the lock was released.
	ErrLost = condition.ErrLost

	// ErrReleased: the lock was released by its holder.
	ErrReleased = condition.ErrReleased

	// ErrInvalidKey: the key was made from an empty or unusable name.
	ErrInvalidKey = errors.New("advisory: invalid key")

	// ErrInvalidOption: an option or argument makes no sense, alone or with another one.
	ErrInvalidOption = condition.ErrInvalidOption
)

// NotAcquiredError tells which lock was not granted, and why. errors.Is finds
// ErrNotAcquired and what ended the waiting: ErrTimeout, ErrDeadlock, ErrPoolExhausted,
// context.Canceled, context.DeadlineExceeded, the context's own cause, or the
// server's error.
type NotAcquiredError struct {
	Keys   []Key // all that were asked for together
	Waited time.Duration
	Cause  error // nil if the call did not wait: somebody else holds the lock
}

func (e *NotAcquiredError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("%v: advisory lock %v is held by somebody else", ErrNotAcquired, e.Keys)
	}
	return fmt.Sprintf("%v: advisory lock %v after %v: %v", ErrNotAcquired, e.Keys, e.Waited.Round(time.Millisecond), e.Cause)
}

// Unwrap makes errors.Is find the sentinel and the cause.
func (e *NotAcquiredError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrNotAcquired}
	}
	return []error{ErrNotAcquired, e.Cause}
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}

// SQLSTATEs that mean something to this package.
const (
	lockNotAvailable     = "55P03"
	deadlockDetected     = "40P01"
	serializationFailure = "40001"
	queryCanceled        = "57014"
	failedTransaction    = "25P02" // in_failed_sql_transaction
	noTransaction        = "25P01" // no_active_sql_transaction
)

// sqlState returns the code of the server's error, "" if it is none.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
