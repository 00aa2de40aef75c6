package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// errNil is the error of every method of a Tx without a transaction.
var errNil = errs.Errorf("sqltx: the transaction is nil: %w", pgx.ErrTxClosed)

// SQLTx is a transaction of database/sql: a *sql.Tx, or one that wraps it and has its methods, such
// as a *sqlx.Tx, or a *ent.Tx with the feature sql/execquery. (Commit and Rollback keep a *sql.DB
// from being passed, whose statements have no transaction in common.)
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Tx is a transaction of database/sql with the methods of a pgx transaction, for one goroutine at a
// time.
type Tx struct {
	tx   SQLTx                    // nil if Wrap was given nil
	conn atomic.Pointer[pgx.Conn] // known once a statement was sent
}

// Wrap returns tx with pgx's methods. It sends nothing, the result need not be closed, and calls of
// the Tx and of tx itself may alternate. If tx is nil, every method returns pgx.ErrTxClosed.
func Wrap(tx SQLTx) *Tx {
	if pgtx.IsNil(tx) {
		return &Tx{}
	}
	return &Tx{tx: tx}
}

// Exec runs a statement, and cancels it if ctx ends meanwhile. The transaction is then aborted, as
// after any failed statement.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	var tag pgconn.CommandTag
	err := t.run(ctx, args, func(ctx context.Context, args []any) error {
		result, err := t.tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		tag = pgconn.NewCommandTag(strconv.FormatInt(n, 10))
		return err
	})
	return tag, err
}

// Query runs a statement as Exec does. The rows, which are never nil, have the error too.
func (t *Tx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	r := &rows{at: -1}
	err := t.run(ctx, args, func(ctx context.Context, args []any) error {
		found, err := t.tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer found.Close()
		return r.read(found, t.conn.Load())
	})
	if err != nil {
		r = &rows{err: err, closed: true}
	}
	return r, err
}

// QueryRow is Query for one row. Its Scan returns the error, and pgx.ErrNoRows without a row.
func (t *Tx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	found, _ := t.Query(ctx, query, args...) // row.Scan returns the error of found
	return row{found}
}

// Commit commits the transaction.
func (t *Tx) Commit(context.Context) error {
	if t == nil || t.tx == nil {
		return errNil
	}
	return translated(t.tx.Commit())
}

// Rollback rolls the transaction back.
func (t *Tx) Rollback(context.Context) error {
	if t == nil || t.tx == nil {
		return errNil
	}
	return translated(t.tx.Rollback())
}

// run runs op with a context that does not end before the statement does, and translates its
// error.
func (t *Tx) run(ctx context.Context, args []any, op func(ctx context.Context, args []any) error) error {
	switch {
	case t == nil || t.tx == nil:
		return errNil
	case ctx.Err() != nil:
		return errs.Errorf("sqltx: nothing was sent: %w", errs.ContextErr(ctx))
	}
	options, args := split(args)
	spy := &pgtx.Spy{Args: args, Found: func(conn *pgx.Conn) error { t.conn.Store(conn); return nil }}
	err := pgtx.RunOn(ctx, t.conn.Load, pgtx.CancelSoon, func(ctx context.Context) error {
		return op(ctx, append(options, spy))
	})
	switch {
	case spy.Passed && err != nil && ctx.Err() != nil:
		return errs.Errorf("%w: %w", errs.ContextErr(ctx), translated(err))
	case spy.Passed:
		return translated(err)
	case err == nil:
		return errs.ErrDriver
	case errors.Is(err, sql.ErrTxDone), ctx.Err() != nil:
		return translated(err)
	}
	return errs.Errorf("%w: %w", errs.ErrDriver, err)
}

// split separates the options that pgx accepts before the arguments, because they must precede the
// spy.
func split(args []any) (options, rest []any) {
	for len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); !ok {
			break
		}
		options, args = append(options, args[0]), args[1:]
	}
	return options, args
}

func translated(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return errs.Errorf("%w: %w", pgx.ErrTxClosed, err)
	}
	return err
}
