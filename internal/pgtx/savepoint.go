package pgtx

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// Savepoint is the name of a savepoint, which must be an SQL identifier. A failure after the
// savepoint does not abort the caller's transaction, and Undo releases the locks that were
// acquired after it.
//
// A cancellation that hits a statement outside the savepoint aborts the transaction permanently,
// and to prepare a statement is a statement too. So nothing may be canceled before the server
// has confirmed the savepoint.
type Savepoint string

func (s Savepoint) query() Query { return Query{SQL: "SAVEPOINT " + string(s)} }

// Release returns the statement that makes the work since Set part of the transaction.
func (s Savepoint) Release() Query { return Query{SQL: "RELEASE SAVEPOINT " + string(s)} }

// Set sets the savepoint, whose statement is left to finish when ctx is done.
func (s Savepoint) Set(ctx context.Context, tx Execer) error {
	return Uncanceled(ctx, tx, func(ctx context.Context) error {
		_, err := tx.Exec(ctx, s.query().SQL)
		return err
	})
}

// Undo rolls the transaction back to the savepoint and releases it, also when ctx is done. If
// that fails, the error wraps ErrTx.
//
// A request to cancel that a pooler delivers late may hit the rollback, once. The rollback is one
// text without arguments, which pgx sends by the simple protocol, because an aborted transaction
// refuses to prepare a statement.
func (s Savepoint) Undo(ctx context.Context, tx Execer) error {
	back := "ROLLBACK TO SAVEPOINT " + string(s) + "; " + s.Release().SQL
	return CleanUp(ctx, func(ctx context.Context) error {
		_, err := tx.Exec(ctx, back)
		if SQLState(err) == QueryCanceled {
			_, err = tx.Exec(ctx, back)
		}
		if err != nil {
			return errs.Errorf("%w: rollback to the savepoint failed: %w", errs.ErrTx, err)
		}
		return nil
	})
}

// Exec runs q, which may wait for locks, between SAVEPOINT and RELEASE SAVEPOINT. It takes one
// round trip if tx is from pgx and uses another protocol than the simple one. When ctx is done,
// q is canceled, but the savepoint is not.
//
// On success the savepoint is released. On failure set reports whether the savepoint was set;
// then the caller must call Undo.
func (s Savepoint) Exec(ctx context.Context, tx Execer, q Query) (set bool, err error) {
	set, err = s.exec(ctx, tx, q)
	if set && SQLState(err) == InvalidSQLStatementName { // what was prepared earlier is deallocated
		if err = s.Undo(ctx, tx); err == nil {
			set, err = s.exec(ctx, tx, q)
		}
	}
	return set, err
}

// exec pipelines the statements if tx can send several whose answers arrive one by one. The
// simple protocol answers all of them at the end.
func (s Savepoint) exec(ctx context.Context, tx Execer, q Query) (set bool, err error) {
	if conn := Conn(tx); conn != nil {
		config := conn.Config() // a copy
		if b, ok := tx.(batcher); ok && config.DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
			p := pipeline{conn: conn, config: config, queries: [3]Query{s.query(), q, s.Release()}}
			return p.run(ctx, b)
		}
	}
	if err := s.Set(ctx, tx); err != nil {
		return false, err
	}
	// A request to cancel that arrived between two statements would cancel nothing.
	if ctx.Err() != nil {
		return true, errs.ContextErr(ctx)
	}
	return true, Run(ctx, Conn(tx), CancelSoon, func(ctx context.Context) error {
		return ExecAll(ctx, tx, q, s.Release())
	})
}
