package rowlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// call is the part that all exported functions have in common.
type call struct {
	tx      Tx
	table   Table
	columns []string // all columns that the call names
	cfg     config
	begun   time.Time
	setting string // the transaction's lock_timeout, if the call has changed it; otherwise empty
}

// refusal is an error that does not come from the server: explain returns it unchanged.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(err error) error { return refusal{err} }

// savepoint keeps a call that fails from aborting the caller's transaction, and releases the rows
// that the call has locked. It takes a round trip of its own, since pgx may have to prepare the
// next statement before it sends the batch.
const savepoint pgtx.Savepoint = "pglock_rows"

// maxAttempts is how often a call starts over because others move, or delete and insert, its
// rows.
const maxAttempts = 5

// run runs op in a savepoint, and starts over if a row has moved to another partition while the
// call waited for it. The server reports such a row as a serialization failure, also at READ
// COMMITTED; there the next statement sees the row at its new place.
func (c *call) run(ctx context.Context, op func(ctx context.Context) error) (err error) {
	for range maxAttempts {
		err = c.runOnce(ctx, op)
		if pgtx.SQLState(err) != pgtx.SerializationFailure || !c.readsCommitted(ctx) {
			return err
		}
	}
	return err
}

// readsCommitted reports whether each statement of the transaction has a snapshot of its own.
func (c *call) readsCommitted(ctx context.Context) bool {
	var level string
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
		return c.tx.QueryRow(ctx, "SELECT current_setting('transaction_isolation')").Scan(&level)
	})
	return err == nil && (level == "read committed" || level == "read uncommitted")
}

// runOnce runs op in a savepoint. If op fails, ctx is done or the timeout has passed, the
// transaction is unchanged.
func (c *call) runOnce(ctx context.Context, op func(ctx context.Context) error) error {
	if pgtx.IsNil(c.tx) {
		return fmt.Errorf("%w: it is nil", ErrTx)
	}
	if ctx.Err() != nil {
		return c.notAcquired(errs.ContextErr(ctx))
	}
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	if err := savepoint.Set(ctx, c.tx); err != nil {
		return c.explain(ctx, bounded, err)
	}
	err := pgtx.Run(bounded, pgtx.Conn(c.tx), pgtx.CancelSoon, func(ctx context.Context) error {
		return c.steps(ctx, bounded, op)
	})
	if err == nil {
		return nil
	}
	failure := c.explain(ctx, bounded, err)
	if undone := savepoint.Undo(ctx, c.tx); undone != nil {
		return errors.Join(failure, undone)
	}
	return c.completeTableError(ctx, failure)
}

// steps runs the round trips inside the savepoint. Each is preceded by a check of bounded, since
// a request to cancel that arrives between two statements cancels nothing.
func (c *call) steps(ctx, bounded context.Context, op func(ctx context.Context) error) error {
	for _, step := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return c.setLockTimeout(ctx, bounded) },
		op,
		c.releaseSavepoint,
	} {
		if bounded.Err() != nil {
			return errs.ContextErr(bounded)
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// timeoutAt returns when the timeout ends, and the zero time without one. It bounds all attempts
// together.
func (c *call) timeoutAt() time.Time {
	if c.cfg.timeout == 0 {
		return time.Time{}
	}
	return c.begun.Add(c.cfg.timeout)
}

// bounded returns a context that is done when the timeout has passed. A transaction that can't be
// canceled on the server would not survive that: there lock_timeout alone bounds the wait.
func (c *call) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := c.tx.(*sqltx.Tx); c.cfg.timeout == 0 || !ok && pgtx.Conn(c.tx) == nil {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, c.timeoutAt(), ErrTimeout)
}

// setLockTimeout sets lock_timeout to the time that is left, unless it is shorter already.
func (c *call) setLockTimeout(ctx, bounded context.Context) error {
	left := pgtx.LockTimeout(bounded, c.timeoutAt())
	if c.cfg.noWait { // rows are not waited for, but a lock on the whole table would be
		left = time.Millisecond
	}
	if left == 0 {
		return nil
	}
	return c.tx.QueryRow(ctx, limitSQL, pgtx.Milliseconds(left)).Scan(&c.setting)
}

// releaseSavepoint makes the work since the savepoint part of the transaction, and restores its
// lock_timeout.
func (c *call) releaseSavepoint(ctx context.Context) error {
	release := []pgtx.Query{savepoint.Release()}
	if c.setting != "" {
		restore := pgtx.Query{SQL: "SELECT set_config('lock_timeout', $1, true)", Args: []any{c.setting}}
		release = append([]pgtx.Query{restore}, release...)
	}
	return pgtx.ExecAll(ctx, c.tx, release...)
}

func (c *call) notAcquired(cause error) error {
	return &NotAcquiredError{Table: c.table.String(), Waited: time.Since(c.begun), Cause: cause}
}

// explain turns the error of a step into this package's errors.
func (c *call) explain(ctx, bounded context.Context, err error) error {
	var refused refusal
	state := pgtx.SQLState(err)
	switch {
	case errors.As(err, &refused):
		return refused.error
	case pgtx.Unusable(err):
		return fmt.Errorf("%w: %w", ErrTx, err)
	case ctx.Err() != nil, state == pgtx.DeadlockDetected: // WaitCause knows more
	case bounded.Err() != nil:
		return c.notAcquired(ErrTimeout)
	case state == pgtx.LockNotAvailable && c.cfg.noWait:
		return c.notAcquired(nil)
	}
	if cause := pgtx.WaitCause(ctx, err, c.timeoutAt()); cause != nil {
		return c.notAcquired(cause)
	}
	switch {
	case state == pgtx.UndefinedTable, state == pgtx.UndefinedColumn, state == pgtx.InvalidSchemaName:
		return &TableError{Table: c.table.String(), Cause: err}
	case state == pgtx.InsufficientPrivilege:
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	case state == pgtx.NumericValueOutOfRange:
		return fmt.Errorf("%w: %w", ErrRange, err)
	case strings.HasPrefix(state, pgtx.DataException):
		return invalidOption("a value does not fit its column of %s: %w", c.table, err)
	}
	return errs.Errorf("rowlock: %s: %w", c.table, err)
}
