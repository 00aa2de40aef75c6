package advisory

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// Tx is what the functions of this package need of a transaction. A pgx.Tx implements it, and
// package sqltx makes one of a *sql.Tx. (Commit and Rollback are never called. They keep a pool
// from being passed as a transaction: there a lock would be released at once.)
//
// If the transaction also has the methods SendBatch and Conn of pgx.Tx, a lock takes one round
// trip instead of three, and a canceled context leaves the connection usable.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Lock acquires an exclusive lock that lasts until tx ends. It waits until ctx is done or the
// time set by WithTimeout has passed.
//
// On success the lock is held. It is released by the end of tx, commit or rollback, and by a
// rollback to a savepoint that was set before. To lock a key again in the same transaction
// succeeds at once.
//
// On failure the lock is not held, and tx and its lock_timeout are unchanged, so that tx remains
// usable (unless the connection broke, or ctx was canceled and tx has no method Conn: see Tx). The
// error is a *NotAcquiredError (errors.Is ErrNotAcquired) if the wait ended: with ErrTimeout,
// ErrDeadlock, or ctx's error and cause. ErrTx and ErrInvalidOption mean that nothing was
// attempted, and other errors are the server's.
//
// Lock takes one round trip; with the simple protocol, two. Read what the lock protects after
// Lock, not before. At READ COMMITTED every later statement sees what the last holder has
// committed. At REPEATABLE READ and SERIALIZABLE the first statement of tx takes its snapshot, and
// that is Lock at the latest, at the start of its wait: later reads show what was committed before
// that. Use Do at these levels: it takes the snapshot once the lock is held.
func Lock(ctx context.Context, tx Tx, key Key, opts ...LockOption) error {
	return lock(ctx, tx, []Key{key}, false, opts)
}

// LockShared is Lock with a shared lock, which excludes only exclusive ones.
func LockShared(ctx context.Context, tx Tx, key Key, opts ...LockOption) error {
	return lock(ctx, tx, []Key{key}, true, opts)
}

// LockAll acquires exclusive locks on all keys, or on none, in one statement. It locks them in one
// order that does not depend on that of keys, so that calls do not deadlock with each other. A key
// that is given twice is locked once, and without keys LockAll returns nil. WithTimeout bounds the
// wait for all keys together. Otherwise LockAll is like Lock.
func LockAll(ctx context.Context, tx Tx, keys []Key, opts ...LockOption) error {
	return lock(ctx, tx, keys, false, opts)
}

// TryLock acquires an exclusive lock that lasts until tx ends, if it is free, and does not wait.
// If another session holds it, the error is a *NotAcquiredError (errors.Is ErrNotAcquired)
// without a cause, and tx is unchanged. ctx bounds the attempt. TryLock sets no savepoint: any
// other error of the server (its statement_timeout, pg_cancel_backend) aborts tx, as for any
// statement. Between two tries tx holds no snapshot at READ COMMITTED, so a program may poll while
// another builds an index concurrently. Otherwise TryLock is like Lock.
func TryLock(ctx context.Context, tx Tx, key Key) error { return try(ctx, tx, key, false) }

// TryLockShared is TryLock with a shared lock: it fails while an exclusive one is held.
func TryLockShared(ctx context.Context, tx Tx, key Key) error { return try(ctx, tx, key, true) }

func lock(ctx context.Context, tx Tx, keys []Key, shared bool, opts []LockOption) error {
	c, err := newTxCall(ctx, tx, keys, shared, opts)
	if err != nil || len(keys) == 0 {
		return err
	}
	set, err := savepoint.Exec(ctx, tx, c.statement(pgtx.LockTimeout(ctx, c.timeoutAt())))
	if err == nil {
		return nil
	}
	failure := c.explain(ctx, err)
	if !set {
		return failure
	}
	return errs.Join(failure, savepoint.Undo(ctx, tx))
}

// newTxCall is newCall for a lock in the caller's transaction.
func newTxCall(ctx context.Context, tx Tx, keys []Key, shared bool, opts []LockOption) (*call, error) {
	c, err := newCall(keys, shared, opts)
	switch {
	case err != nil:
		return nil, err
	case pgtx.IsNil(tx):
		return nil, errs.Errorf("%w: it is nil", ErrTx)
	case len(keys) > 0 && ctx.Err() != nil:
		return nil, c.notAcquired(errs.ContextErr(ctx))
	}
	return c, checkEngine(pgtx.Conn(tx))
}

// checkEngine returns an error if conn, which may be nil, leads to a server whose advisory locks
// lock nothing: pglock.ErrSchema.
func checkEngine(conn *pgx.Conn) error {
	if conn == nil {
		return nil
	}
	return schema.CheckEngine(conn.PgConn())
}

// savepoint keeps a wait that fails from aborting the caller's transaction, and releases a lock
// that was granted at the same moment.
const savepoint pgtx.Savepoint = "pglock_lock"

func try(ctx context.Context, tx Tx, key Key, shared bool) error {
	c, err := newTxCall(ctx, tx, []Key{key}, shared, nil)
	if err != nil {
		return err
	}
	var got bool
	err = pgtx.Uncanceled(ctx, tx, func(ctx context.Context) error {
		q := key.calling(c.suffixed("pg_try_advisory_xact_lock"))
		return tx.QueryRow(ctx, q.SQL, append([]any{tryMode(tx)}, q.Args...)...).Scan(&got)
	})
	switch {
	case err != nil:
		return c.explain(ctx, err)
	case !got:
		return c.notAcquired(nil)
	}
	return nil
}

// tryMode returns pgx's mode for a try: the simple protocol. With the extended one, the last
// statement's portal stays open in the transaction, and with it a snapshot, and CREATE INDEX
// CONCURRENTLY would wait for it between two tries. pgx refuses the simple protocol in sessions
// with some settings, and then that index has to wait.
func tryMode(tx Tx) pgx.QueryExecMode {
	if conn := pgtx.Conn(tx); conn != nil {
		server := conn.PgConn()
		if server.ParameterStatus("standard_conforming_strings") != "on" || server.ParameterStatus("client_encoding") != "UTF8" {
			return pgx.QueryExecModeExec
		}
	}
	return pgx.QueryExecModeSimpleProtocol
}
