package rowlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// call is one call of an exported function.
type call struct {
	tx      Tx
	table   Table
	columns []string // all that it names
	cfg     config
	begun   time.Time
	setting string // the transaction's own lock_timeout, where the call has set another
}

// refusal is an error that is not the server's: it is returned as it is.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(err error) error { return refusal{err} }

// The savepoint keeps a call that fails from aborting the caller's transaction, and lets go
// of the rows that it has locked until then. It is a round trip of its own, since the next statement
// may have to be prepared, which fails before anything in the same batch is run. The way back goes as
// one text, since an aborted transaction lets nothing be prepared.
const (
	setSavepoint    = "SAVEPOINT pglock_rows"
	forgetSavepoint = "RELEASE SAVEPOINT pglock_rows"
	backToSavepoint = "ROLLBACK TO SAVEPOINT pglock_rows; RELEASE SAVEPOINT pglock_rows"
)

// once runs op in a savepoint. If op fails, or ctx ends, or the time is over, the transaction
// is as it was before. Setting the savepoint waits for nobody and is left to end: to cancel it
// would abort the transaction.
func (c *call) once(ctx context.Context, op func(ctx context.Context) error) error {
	if missing(c.tx) {
		return fmt.Errorf("%w: it is nil", ErrTx)
	}
	if ctx.Err() != nil {
		return c.notAcquired(await.Ended(ctx))
	}
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	err := await.RunOn(ctx, func() *pgx.Conn { return connOf(c.tx) }, await.UntilAnswered, func(ctx context.Context) error {
		_, err := c.tx.Exec(ctx, setSavepoint)
		return err
	})
	if err != nil {
		return c.explain(ctx, bounded, err)
	}
	err = await.Run(bounded, connOf(c.tx), await.WhileBlocked, func(ctx context.Context) error {
		return c.steps(bounded, ctx, op)
	})
	if err == nil {
		return nil
	}
	failure := c.explain(ctx, bounded, err)
	if undone := c.undo(ctx); undone != nil {
		return errors.Join(failure, undone)
	}
	return c.lookUp(ctx, failure)
}

// steps are the round trips in the savepoint. Each looks first whether the time is over, because a request to
// cancel that comes between two of them cancels nothing.
func (c *call) steps(bounded, ctx context.Context, op func(ctx context.Context) error) error {
	for _, step := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return c.limit(ctx, bounded) },
		op,
		c.settle,
	} {
		if bounded.Err() != nil {
			return await.Ended(bounded)
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// bounded returns a context that ends when the time-out is over, which counts for all attempts
// together. A transaction whose
// connection can't be told would not survive that: there it is the server's lock_timeout alone.
func (c *call) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.cfg.timeout == 0 || !cancels(c.tx) {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, c.begun.Add(c.cfg.timeout), ErrTimeout)
}

// limit sets lock_timeout to what is left, and never above what it was.
func (c *call) limit(ctx, bounded context.Context) error {
	var left time.Duration
	if c.cfg.timeout > 0 {
		left = max(c.cfg.timeout-time.Since(c.begun), time.Millisecond)
	}
	if deadline, ok := bounded.Deadline(); ok {
		if d := max(time.Until(deadline), time.Millisecond); left == 0 || d < left {
			left = d
		}
	}
	if c.cfg.noWait { // rows are not waited for, but a lock on the table would be
		left = time.Millisecond
	}
	if left == 0 {
		return nil
	}
	return c.tx.QueryRow(ctx, limitSQL, milliseconds(left)).Scan(&c.setting)
}

// milliseconds rounds up, to what lock_timeout can hold.
func milliseconds(d time.Duration) int64 {
	return min(int64((d-1)/time.Millisecond)+1, math.MaxInt32)
}

// settle makes the savepoint's work part of the transaction, with the lock_timeout that it had.
func (c *call) settle(ctx context.Context) error {
	if c.setting == "" {
		_, err := c.tx.Exec(ctx, forgetSavepoint)
		return err
	}
	return sendTogether(ctx, c.tx, query{"SELECT set_config('lock_timeout', $1, true)", []any{c.setting}}, query{sql: forgetSavepoint})
}

// undo goes back to the savepoint, which restores lock_timeout too. A request to cancel that
// a pooler delivers late may hit it, once.
func (c *call) undo(ctx context.Context) error {
	return await.CleanUp(ctx, func(ctx context.Context) error {
		_, err := c.tx.Exec(ctx, backToSavepoint)
		if sqlState(err) == queryCanceled {
			_, err = c.tx.Exec(ctx, backToSavepoint)
		}
		if err != nil {
			return fmt.Errorf("%w: the savepoint could not be restored: %w", ErrTx, err)
		}
		return nil
	})
}

func (c *call) notAcquired(cause error) error {
	return &NotAcquiredError{Table: c.table.String(), Waited: time.Since(c.begun), Cause: cause}
}

// explain turns why a step failed into this package's errors.
func (c *call) explain(ctx, bounded context.Context, err error) error {
	var refused refusal
	state := sqlState(err)
	switch {
	case errors.As(err, &refused):
		return refused.error
	case state == failedTransaction, state == noTransaction, errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("%w: %w", ErrTx, err)
	case state == deadlockDetected:
		return c.notAcquired(fmt.Errorf("%w: %w", ErrDeadlock, err))
	case ctx.Err() != nil:
		return c.notAcquired(await.Ended(ctx))
	case bounded.Err() != nil:
		return c.notAcquired(ErrTimeout)
	case state == lockNotAvailable:
		return c.notAcquired(c.whyNot(ctx, err))
	case state == queryCanceled: // the transaction's statement_timeout, or somebody with pg_cancel_backend
		return c.notAcquired(err)
	case state == undefinedTable, state == undefinedColumn, state == undefinedSchema:
		return &TableError{Table: c.table.String(), Cause: err}
	case state == noPrivilege:
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	case state == outOfRange:
		return fmt.Errorf("%w: %w", ErrRange, err)
	case strings.HasPrefix(state, dataException):
		return invalidOption("a value does not fit its column of %s: %w", c.table, err)
	}
	return fmt.Errorf("rowlock: %s: %w", c.table, err)
}

// whyNot tells what made the server stop waiting.
func (c *call) whyNot(ctx context.Context, err error) error {
	if c.cfg.noWait {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < await.WhileBlocked.Deadline {
		if c.cfg.timeout == 0 || c.begun.Add(c.cfg.timeout).After(deadline) {
			return context.DeadlineExceeded // a moment before ctx itself
		}
	}
	return fmt.Errorf("%w: %w", ErrTimeout, err)
}
