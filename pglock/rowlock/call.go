package rowlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// call is the part that all exported functions have in common.
type call struct {
	tx      advisory.Tx
	table   string // quoted, for errors
	noWait  bool
	begun   time.Time
	setting string // the transaction's lock_timeout, if the call has changed it; otherwise empty
	again   bool   // op failed only because its snapshot is too old
}

// refusal is an error that does not come from the server: explain returns it unchanged.
type refusal struct{ error }

// savepoint keeps a call that fails from aborting the caller's transaction, and releases its rows.
// It takes a separate round trip, since pgx may prepare the next statement before it sends a batch.
const savepoint pgtx.Savepoint = "pglock_rows"

// run runs op in a savepoint, up to five times. It starts over if op asks for a new snapshot, or if
// a row has moved to another partition during the wait. The server reports that as a serialization
// failure, but at READ COMMITTED the next statement sees the row at its new place.
func run[T any](ctx context.Context, c *call, op func(ctx context.Context) (T, error)) (none T, err error) {
	for range 5 {
		var result T
		c.again = false
		err = c.attempt(ctx, func(ctx context.Context) (err error) { result, err = op(ctx); return err })
		if err == nil {
			return result, nil
		}
		if !c.again && pgtx.SQLState(err) != pgtx.SerializationFailure {
			break
		}
	}
	return none, err
}

// attempt runs op in a savepoint. If op fails or ctx is done, the transaction is unchanged.
func (c *call) attempt(ctx context.Context, op func(ctx context.Context) error) error {
	if pgtx.IsNil(c.tx) {
		return fmt.Errorf("%w: it is nil", errs.ErrTx)
	}
	if ctx.Err() != nil {
		return c.notAcquired(errs.ContextErr(ctx))
	}
	if err := savepoint.Set(ctx, c.tx); err != nil {
		return c.explain(ctx, err)
	}
	limit := pgtx.LockTimeout(ctx, time.Time{})
	if c.noWait { // rows are not waited for, but a lock on the whole table would be
		limit = time.Millisecond
	}
	err := pgtx.Run(ctx, pgtx.Conn(c.tx), pgtx.CancelSoon, func(detached context.Context) error {
		for _, step := range []func(ctx context.Context) error{
			func(ctx context.Context) error { return c.setLockTimeout(ctx, limit) }, op, c.releaseSavepoint,
		} {
			if ctx.Err() != nil { // a request to cancel between two statements has canceled nothing
				return errs.ContextErr(ctx)
			}
			if err := step(detached); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return errs.Join(c.explain(ctx, err), savepoint.Undo(ctx, c.tx))
	}
	return nil
}

// setLockTimeout sets lock_timeout to limit, unless that is 0 or longer.
func (c *call) setLockTimeout(ctx context.Context, limit time.Duration) error {
	if limit == 0 {
		return nil
	}
	return c.tx.QueryRow(ctx, statements["limit"], pgtx.Milliseconds(limit)).Scan(&c.setting)
}

// releaseSavepoint keeps the work since the savepoint, and restores lock_timeout.
func (c *call) releaseSavepoint(ctx context.Context) error {
	if c.setting == "" {
		return pgtx.ExecAll(ctx, c.tx, savepoint.Release())
	}
	return pgtx.ExecAll(ctx, c.tx, pgtx.Query{SQL: "SELECT set_config('lock_timeout', $1, true)", Args: []any{c.setting}}, savepoint.Release())
}

// refuseMissing returns err, which says that keys are missing from the statement's result. If one
// of them is in the table now, it was deleted and inserted again during the wait: the call starts
// over.
func (c *call) refuseMissing(ctx context.Context, table Table, none []any, err error) error {
	array, _ := keyArray(none) // they were checked with the others
	q := table.render("SELECT EXISTS (SELECT FROM :table AS t WHERE t.:key = ANY (:1) :where)", []any{array})
	if failed := c.tx.QueryRow(ctx, q.SQL, q.Args...).Scan(&c.again); failed != nil {
		return failed
	}
	return err
}

// collect runs the query and returns its rows.
func collect[T any](ctx context.Context, tx advisory.Tx, q pgtx.Query, scan pgx.RowToFunc[T]) ([]T, error) {
	found, _ := tx.Query(ctx, q.SQL, q.Args...) // CollectRows returns the error of the rows
	return pgx.CollectRows(found, scan)
}

func (c *call) notAcquired(cause error) error {
	return &NotAcquiredError{Table: c.table, Waited: time.Since(c.begun), Cause: cause}
}

// explain turns the error of a step into this package's errors.
func (c *call) explain(ctx context.Context, err error) error {
	var refused refusal
	state, cause := pgtx.SQLState(err), pgtx.WaitCause(ctx, err, time.Time{})
	switch {
	case errors.As(err, &refused):
		return refused.error
	case pgtx.Unusable(err):
		return fmt.Errorf("%w: %w", errs.ErrTx, err)
	case state == pgtx.LockNotAvailable && c.noWait && ctx.Err() == nil:
		return c.notAcquired(nil)
	case cause != nil:
		return c.notAcquired(cause)
	case state == pgtx.InsufficientPrivilege:
		return fmt.Errorf("%w: %w", errs.ErrPrivilege, err)
	case state == pgtx.NumericValueOutOfRange:
		return fmt.Errorf("%w: %w", ErrRange, err)
	case strings.HasPrefix(state, pgtx.DataException):
		return errs.InvalidOption("rowlock", "a value does not fit its column of %s: %w", c.table, err)
	}
	return errs.Errorf("rowlock: %s: %w", c.table, err)
}
