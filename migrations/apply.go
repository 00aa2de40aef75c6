package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/await"
)

// apply carries out one migration and records it.
//
//	BEGIN ─ record: dirty ─ the file ─ record: clean ─ COMMIT
//	                           │
//	      the server: not in a transaction! (nothing is left)
//	                           ▼
//	record: dirty ─ the file, by itself ─ record: clean
//
// It returns errMoved, and has done nothing, if the version is not at any more.
func (r *runner) apply(ctx context.Context, at position, m migration) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	defer conn.Release()
	a := &application{r, conn, at, m}
	err = a.inTransaction(ctx)
	switch {
	case !notInTransaction(err):
		return err
	case a.nothingLeft(ctx):
		return a.alone(ctx)
	}
	return a.failure(ctx, err) // the file has committed a part of itself
}

// application is one migration that is carried out.
type application struct {
	*runner
	conn *pgxpool.Conn
	at   position
	m    migration
}

func (a *application) dirty() position {
	return position{version: int(a.m.version), dirty: true, mayNote: a.at.mayNote}
}

func (a *application) clean() position {
	return position{version: int(a.m.version), name: a.m.name}
}

// notInTransaction reports whether a statement was refused because it was in a transaction:
// by itself, or since it ends transactions.
func notInTransaction(err error) bool {
	switch code(err) {
	case "25001", "2D000": // active_sql_transaction, invalid_transaction_termination
		return true
	}
	return false
}

// inTransaction carries the migration out and records it in one transaction. A file that
// ends the transaction by itself has committed that it is dirty; it gets a second
// transaction for the end.
func (a *application) inTransaction(ctx context.Context) error {
	var failed error
	err := a.transaction(ctx, func(tx pgx.Tx) error {
		if err := a.record.set(ctx, tx, a.at, a.dirty()); err != nil {
			return err
		}
		if failed = a.exec(ctx); failed != nil {
			return failed
		}
		const idle = 'I'
		if a.conn.Conn().PgConn().TxStatus() == idle {
			return errEnded
		}
		return a.record.set(ctx, tx, a.dirty(), a.clean())
	})
	switch {
	case errors.Is(err, errEnded):
		return a.recordEnd(ctx)
	case errors.Is(err, errMoved):
		return errMoved
	case failed != nil && !notInTransaction(failed), err != nil && failed == nil:
		return a.failure(ctx, err)
	}
	return err
}

// errEnded: the file has ended the transaction.
var errEnded = errors.New("migrations: the file ended its transaction")

// alone carries the migration out without a transaction of ours.
func (a *application) alone(ctx context.Context) error {
	err := a.transaction(ctx, func(tx pgx.Tx) error { return a.record.set(ctx, tx, a.at, a.dirty()) })
	if err != nil {
		return err
	}
	err = a.exec(ctx)
	switch {
	case err == nil:
		return a.recordEnd(ctx)
	case notInTransaction(err):
		// Several statements that are sent at once are a transaction, which is undone.
		back := a.at
		back.name = "" // the comment is as it was
		err = errors.Join(fmt.Errorf("it needs a file of its own: %w", err), await.CleanUp(ctx, func(ctx context.Context) error {
			return a.transaction(ctx, func(tx pgx.Tx) error { return a.record.set(ctx, tx, a.dirty(), back) })
		}))
	}
	return a.failure(ctx, err)
}

// recordEnd records that the migration is carried out, also if ctx has ended.
func (a *application) recordEnd(ctx context.Context) error {
	err := await.CleanUp(ctx, func(ctx context.Context) error {
		return a.transaction(ctx, func(tx pgx.Tx) error { return a.record.set(ctx, tx, a.dirty(), a.clean()) })
	})
	switch {
	case errors.Is(err, errMoved): // by hand: that is not to be tried again
		return a.failure(ctx, errors.New("it was carried out, but not recorded: "+err.Error()))
	case err != nil:
		return a.failure(ctx, fmt.Errorf("it was carried out, but not recorded: %w", err))
	}
	return nil
}

// exec sends the file as it is, which may be several statements. When ctx ends the server
// is asked to cancel it.
func (a *application) exec(ctx context.Context) error {
	if strings.TrimSpace(a.m.sql) == "" {
		return nil
	}
	return await.Run(ctx, a.conn.Conn(), await.WhileBlocked, func(ctx context.Context) error {
		_, err := a.conn.Conn().PgConn().Exec(ctx, a.m.sql).ReadAll()
		return err
	})
}

// transaction runs fn in one, and commits it if fn returns nil.
func (a *application) transaction(ctx context.Context, fn func(tx pgx.Tx) error) error {
	tx, err := a.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	defer func() { _ = await.CleanUp(ctx, tx.Rollback) }() // after the commit it does nothing; where it fails, the connection ends
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return &commitError{err}
	}
	return nil
}

// commitError is a commit that was not confirmed. Without a server's error it may have
// been carried out.
type commitError struct{ cause error }

func (e *commitError) Error() string { return "commit: " + e.cause.Error() }
func (e *commitError) Unwrap() error { return e.cause }

// nothingLeft reports whether the version is as it was before.
func (a *application) nothingLeft(ctx context.Context) bool {
	at, err := a.now(ctx)
	return err == nil && at.version == a.at.version && at.dirty == a.at.dirty
}

// now reads the version, also if ctx has ended.
func (a *application) now(ctx context.Context) (at position, err error) {
	err = await.CleanUp(ctx, func(ctx context.Context) error {
		at, err = a.record.read(ctx, a.pool)
		return err
	})
	return at, err
}

// failure tells what became of a migration that failed: nil if it is recorded after all.
func (a *application) failure(ctx context.Context, cause error) error {
	if ctx.Err() != nil && !errors.Is(cause, context.Cause(ctx)) {
		cause = errors.Join(cause, await.Ended(ctx))
	}
	e := &MigrationError{Version: a.m.version, Name: a.m.name, Table: a.record.quoted, Before: a.at.version, Cause: cause}
	at, err := a.now(ctx)
	var commit *commitError
	unanswered := errors.As(cause, &commit) && code(cause) == ""
	if unanswered && err == nil && at.version == int(a.m.version) && !at.dirty {
		return nil
	}
	e.Unknown = err != nil || unanswered
	e.Dirty = err == nil && at.dirty && at.version == int(a.m.version)
	return e
}
