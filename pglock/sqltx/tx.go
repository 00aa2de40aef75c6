package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/await"
)

// Tx is a *sql.Tx with the shape of a pgx transaction. Like its *sql.Tx, it is for one
// goroutine at a time.
type Tx struct {
	tx   *sql.Tx
	conn atomic.Pointer[pgx.Conn] // known once a statement has been sent
}

// Wrap returns tx with pgx's methods. It sends nothing, and there is nothing to close; tx
// can be used beside it, between two calls. Of a nil tx every method says pgx.ErrTxClosed.
func Wrap(tx *sql.Tx) *Tx { return &Tx{tx: tx} }

// Exec runs a statement. The tag has the number of rows only. A ctx that ends meanwhile
// cancels the statement; the transaction is aborted then, as after any failed statement,
// and can go back to a savepoint.
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

// Query runs a statement and reads its rows to the end: those returned are in memory. For
// ctx it is like Exec. The error is also in the rows, which are never nil.
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

// QueryRow is Query for one row. Scan returns the error, and pgx.ErrNoRows if there is none.
func (t *Tx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	found, _ := t.Query(ctx, query, args...) // row.Scan finds the error in it
	return row{found}
}

// Commit commits the *sql.Tx, whatever ctx says.
func (t *Tx) Commit(context.Context) error {
	if t == nil || t.tx == nil {
		return errNil
	}
	return translated(t.tx.Commit())
}

// Rollback rolls the *sql.Tx back, whatever ctx says.
func (t *Tx) Rollback(context.Context) error {
	if t == nil || t.tx == nil {
		return errNil
	}
	return translated(t.tx.Rollback())
}

// run runs op with a context that does not end before the statement does.
func (t *Tx) run(ctx context.Context, args []any, op func(ctx context.Context, args []any) error) error {
	switch {
	case t == nil || t.tx == nil:
		return errNil
	case ctx.Err() != nil:
		return fmt.Errorf("sqltx: nothing was sent: %w", await.Ended(ctx))
	}
	options, args := split(args)
	spy := &spy{tx: t, args: args}
	err := await.RunOn(ctx, t.conn.Load, await.WhileBlocked, func(ctx context.Context) error {
		return op(ctx, append(options, spy))
	})
	switch {
	case spy.passed && err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", await.Ended(ctx), translated(err))
	case spy.passed:
		return translated(err)
	case err == nil:
		return ErrDriver
	case errors.Is(err, sql.ErrTxDone), ctx.Err() != nil:
		return translated(err)
	}
	return fmt.Errorf("%w: %w", ErrDriver, err)
}

// split takes off what pgx takes as options rather than arguments. They must come before the spy.
func split(args []any) (options, rest []any) {
	for len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); !ok {
			break
		}
		options, args = append(options, args[0]), args[1:]
	}
	return options, args
}

// spy is the one argument that each statement gets. pgx lets it put the real ones in its
// place and tells it the connection, which *sql.Tx does not. Another driver can't send it.
type spy struct {
	tx     *Tx
	args   []any
	passed bool // pgx has called it
}

// RewriteQuery implements pgx.QueryRewriter.
func (s *spy) RewriteQuery(ctx context.Context, conn *pgx.Conn, query string, _ []any) (string, []any, error) {
	s.passed = true
	s.tx.conn.Store(conn)
	args := s.args
	if len(args) > 0 {
		if own, ok := args[0].(pgx.QueryRewriter); ok {
			return own.RewriteQuery(ctx, conn, query, args[1:])
		}
	}
	return query, args, nil
}
