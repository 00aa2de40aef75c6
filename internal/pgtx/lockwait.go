package pgtx

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/internal/errs"
)

// LockTimeout returns how long a statement may wait for locks: until the deadline of ctx or
// until timeoutAt, whichever comes first, and 1 ms at least. A zero timeoutAt is no bound. It
// returns 0 if there is neither.
func LockTimeout(ctx context.Context, timeoutAt time.Time) time.Duration {
	end := timeoutAt
	if deadline, ok := ctx.Deadline(); ok && (end.IsZero() || deadline.Before(end)) {
		end = deadline
	}
	if end.IsZero() {
		return 0
	}
	return max(time.Until(end), time.Millisecond)
}

// Milliseconds returns d as lock_timeout counts it, rounded up. For 0, which means no bound, it
// returns the longest time that the setting can hold, 24 days.
func Milliseconds(d time.Duration) int64 {
	if d == 0 {
		return math.MaxInt32
	}
	return int64(min((d-1)/time.Millisecond+1, math.MaxInt32))
}

// Micros is a duration that scans a number of microseconds, and NULL as 0.
type Micros time.Duration

// ScanInt64 implements pgtype.Int64Scanner.
func (m *Micros) ScanInt64(n pgtype.Int8) error {
	*m = Micros(time.Duration(n.Int64) * time.Microsecond)
	return nil
}

// WaitCause returns why the wait for a lock ended with err: an error that wraps ErrDeadlock or
// ErrTimeout, the context's error and cause, or err itself for a statement_timeout or a
// pg_cancel_backend. It returns nil for an err that did not end a wait. timeoutAt is the one
// that LockTimeout was called with.
func WaitCause(ctx context.Context, err error, timeoutAt time.Time) error {
	switch state := SQLState(err); {
	case state == DeadlockDetected:
		return errs.Errorf("%w: %w", errs.ErrDeadlock, err)
	case ctx.Err() != nil:
		return errs.ContextErr(ctx)
	case state == LockNotAvailable && deadlineFirst(ctx, timeoutAt):
		return context.DeadlineExceeded
	case state == LockNotAvailable:
		return errs.Errorf("%w: %w", errs.ErrTimeout, err)
	case state == QueryCanceled:
		return err
	}
	return nil
}

// deadlineFirst reports whether a lock_timeout that fires now comes from the deadline of ctx,
// which passes a moment later, and not from timeoutAt or from the transaction's own setting.
func deadlineFirst(ctx context.Context, timeoutAt time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < CancelSoon.Deadline && (timeoutAt.IsZero() || timeoutAt.After(deadline))
}

// Unusable reports whether err says that the transaction is committed, rolled back, or aborted
// by an earlier error.
func Unusable(err error) bool {
	state := SQLState(err)
	return state == InFailedSQLTransaction || state == NoActiveSQLTransaction || errors.Is(err, pgx.ErrTxClosed)
}
