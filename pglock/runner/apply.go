package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// apply runs one migration and records it.
//
//	BEGIN ─ record: dirty ─ the file ─ record: clean ─ COMMIT
//	                           │
//	     the server refuses to run it in a transaction (nothing is left)
//	                           ▼
//	record: dirty ─ the file, without a transaction ─ record: clean
//
// It returns errVersionChanged, and has done nothing, if the version table no longer says at.
func (r *runner) apply(ctx context.Context, at tableState, m migration) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return errs.Errorf("runner: %w", pgtx.ExplainLogin(err))
	}
	defer func() { // the next file gets a new connection, without the settings that this one leaves
		_ = pgtx.CleanUp(ctx, conn.Conn().Close)
		conn.Release()
	}()
	a := &applier{
		runner: r, conn: conn, at: at, m: m,
		dirty: tableState{version: max(int(m.version), at.version), dirty: true},
		clean: tableState{version: max(int(m.version), at.version)},
	}
	if err = a.applyInTx(ctx); !notInTransaction(err) {
		return err
	}
	return a.applyWithoutTx(ctx, err)
}

type applier struct {
	*runner
	conn             *pgxpool.Conn
	m                migration
	role, session    string     // before the file
	undone           bool       // the first ROLLBACK of the file is its last statement
	at, dirty, clean tableState // before it, while it runs, and after it
}

// notInTransaction reports whether the server refused a statement because it ran in a transaction.
func notInTransaction(err error) bool {
	state := pgtx.SQLState(err)
	return state == pgtx.ActiveSQLTransaction || state == pgtx.InvalidTransactionTermination
}

// applyInTx runs the migration and records it in one transaction. If the file commits by itself,
// that commit has the dirty mark, which a second transaction clears.
func (a *applier) applyInTx(ctx context.Context) error {
	err := inTx(ctx, a.conn, func(ctx context.Context, tx pgx.Tx) error {
		if err := a.begin(ctx, tx); err != nil {
			return err
		}
		if err := a.exec(ctx); err != nil {
			return err
		}
		const idle = 'I'
		if a.conn.Conn().PgConn().TxStatus() == idle {
			return errTxEnded
		}
		err := a.end(ctx, tx)
		if errors.Is(err, errVersionChanged) { // its own transaction does not see the mark that it has made
			err = errRollback
		}
		return err
	})
	switch {
	case errors.Is(err, errTxEnded):
		if a.rolledBack(ctx) {
			return a.failure(ctx, errRollback)
		}
		return a.recordClean(ctx)
	case err == nil, errors.Is(err, errVersionChanged), notInTransaction(err):
		return err
	}
	return a.failure(ctx, err)
}

var (
	errTxEnded  = errors.New("runner: the file ended its transaction")
	errRollback = errors.New("the file has a ROLLBACK, which also ended the transaction that records it: remove the ROLLBACK")
)

// begin records in tx that the migration runs. If it is out of order, its row is dirty too, because
// the version does not say which one runs.
func (a *applier) begin(ctx context.Context, tx pgx.Tx) error {
	err := a.table.replace(ctx, tx, a.at, a.dirty)
	if err == nil {
		err = a.table.record(ctx, tx, a.at, a.m, int(a.m.version) < a.at.version)
	}
	if err == nil {
		err = tx.QueryRow(ctx, "SELECT current_setting('session_authorization'), current_setting('role')").Scan(&a.session, &a.role)
	}
	return err
}

// end records in tx that the migration has run, with the role of before. It resets the settings as
// well, because a pooler in transaction mode lends the session to others.
func (a *applier) end(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE; RESET ALL") // the constraints run with the settings of the file
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT set_config('session_authorization', $1, false), set_config('role', $2, false)", a.session, a.role)
	}
	if err == nil {
		err = a.table.replace(ctx, tx, a.dirty, a.clean)
	}
	if err == nil {
		_, err = tx.Exec(ctx, "UPDATE "+recordOf(a.table.quoted)+" SET dirty = false WHERE version = $1 AND dirty", int64(a.m.version))
	}
	return err
}

// rolledBack reports whether the file has ended its transaction by a ROLLBACK, which has undone
// what begin recorded. Statements after it may be committed, and then the version becomes dirty.
func (a *applier) rolledBack(ctx context.Context) bool {
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error {
		return inTx(ctx, a.conn, func(ctx context.Context, tx pgx.Tx) error {
			if err := a.begin(ctx, tx); err != nil || !a.undone {
				return err
			}
			return errRollback
		})
	})
	return err == nil || errors.Is(err, errRollback)
}

// applyWithoutTx runs the migration outside a transaction, which the server refused.
func (a *applier) applyWithoutTx(ctx context.Context, refused error) error {
	err := inTx(ctx, a.conn, a.begin)
	switch {
	case errors.Is(err, errVersionChanged): // the file has committed a part of itself, and that it is dirty
		return a.failure(ctx, refused)
	case err != nil:
		return err
	}
	err = a.exec(ctx)
	switch {
	case err == nil:
		return a.recordClean(ctx)
	case notInTransaction(err):
		// The server runs statements that are sent together in one transaction, which it has rolled
		// back: nothing is left, so the version goes back too.
		err = errs.Join(errs.Errorf("the statement needs a separate file: %w", err), pgtx.CleanUp(ctx, func(ctx context.Context) error {
			return inTx(ctx, a.conn, func(ctx context.Context, tx pgx.Tx) error {
				if err := a.table.replace(ctx, tx, a.dirty, a.at); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "DELETE FROM "+recordOf(a.table.quoted)+" WHERE version = $1", int64(a.m.version))
				return err
			})
		}))
	}
	return a.failure(ctx, err)
}

// recordClean records that the migration has run, also if ctx has ended.
func (a *applier) recordClean(ctx context.Context) error {
	err := pgtx.CleanUp(ctx, func(ctx context.Context) error { return inTx(ctx, a.conn, a.end) })
	switch {
	case errors.Is(err, errVersionChanged): // a person changed it: errVersionChanged would start a retry
		return a.failure(ctx, errors.New("the migration ran, but was not recorded: "+err.Error()))
	case err != nil:
		return a.failure(ctx, errs.Errorf("the migration ran, but was not recorded: %w", err))
	}
	return nil
}

// exec sends the file, which may have several statements, unchanged. When ctx ends, exec asks the
// server to cancel the statement that is running.
func (a *applier) exec(ctx context.Context) error {
	if a.m.empty() {
		return nil
	}
	return pgtx.Run(ctx, a.conn.Conn(), pgtx.CancelSoon, func(ctx context.Context) error {
		all, err := a.conn.Conn().PgConn().Exec(ctx, a.m.sql).ReadAll()
		a.undone = len(all) == 1+slices.IndexFunc(all, func(r *pgconn.Result) bool { return r.CommandTag.String() == "ROLLBACK" })
		return err
	})
}

type beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

func inTx(ctx context.Context, db beginner, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return errs.Errorf("runner: %w", err)
	}
	defer func() { _ = pgtx.CleanUp(ctx, tx.Rollback) }() // no effect after the commit; if it fails, pgx closes the connection
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	return nil
}

// errCommit: a commit was not confirmed. Without an error of the server's, it may have happened.
var errCommit = errors.New("commit")

// failure returns the error for a migration that failed, with what is left of it. It returns nil if
// the version table says that the migration succeeded.
func (a *applier) failure(ctx context.Context, cause error) error {
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = errs.Join(cause, errs.ContextErr(ctx))
	}
	e := &MigrationError{Version: a.m.version, Name: a.m.name, Table: a.table.quoted, Before: a.at.version, Cause: cause}
	var now tableState
	err := pgtx.CleanUp(ctx, func(ctx context.Context) (err error) {
		now, err = a.table.read(ctx, a.pool)
		return err
	})
	unconfirmed := errors.Is(cause, errCommit) && pgtx.SQLState(cause) == ""
	if _, ok := now.applied[a.m.version]; ok && unconfirmed && err == nil && now.version == a.clean.version && !now.dirty {
		return nil
	}
	e.Unknown = err != nil || unconfirmed
	e.Dirty = err == nil && now.dirty && now.begun == int(a.m.version)
	return e
}
