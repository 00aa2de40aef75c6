package advisory

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// Lock takes an exclusive lock that lasts until tx ends, and waits for it until ctx is
// done or WithTimeout is over.
//
// On success the lock is held. It is released by the end of tx, commit or rollback, and by
// a rollback to a savepoint that was set before. Locking a key again in the same
// transaction succeeds at once.
//
// On failure the lock is not held and tx is as it was, also its lock_timeout, and can be
// used further (unless the connection broke, or tx can't Conn and ctx was cancelled: see Tx).
// The error is a *NotAcquiredError (errors.Is ErrNotAcquired) when the wait ended: with
// ErrTimeout, ErrDeadlock, or ctx's error and cause. ErrTx, ErrInvalidKey and ErrInvalidOption
// mean that nothing was tried.
//
// It takes one round trip. Read what the lock protects after it, not before. At READ
// COMMITTED every statement then sees what the last holder has committed. At REPEATABLE
// READ and SERIALIZABLE the snapshot of tx is taken by its first statement, and that is
// Lock at the latest, when it begins to wait: reads show what was committed before that.
// Use Do there, which takes the snapshot when the lock is held.
func Lock(ctx context.Context, tx Tx, key Key, opts ...LockOption) error {
	return lock(ctx, tx, []Key{key}, false, opts)
}

// LockShared is Lock with a shared lock: it excludes exclusive ones only.
func LockShared(ctx context.Context, tx Tx, key Key, opts ...LockOption) error {
	return lock(ctx, tx, []Key{key}, true, opts)
}

// LockAll takes exclusive locks on all keys, or on none, in one statement. It takes them in
// one order, whatever the order here, so that calls do not run into deadlocks with
// each other; a key that comes twice is locked once. Without keys it returns nil.
// Otherwise it is like Lock.
func LockAll(ctx context.Context, tx Tx, keys ...Key) error {
	return LockAllWith(ctx, tx, keys)
}

// LockAllWith is LockAll with options. WithTimeout bounds the wait for all of them.
func LockAllWith(ctx context.Context, tx Tx, keys []Key, opts ...LockOption) error {
	return lock(ctx, tx, keys, false, opts)
}

// TryLock takes an exclusive lock until tx ends if it is free, and does not wait. If
// somebody else holds it, the error is a *NotAcquiredError (errors.Is ErrNotAcquired) without
// a cause, and nothing has changed. ctx bounds the asking. It sets no savepoint, as it does not wait: another error of
// the server's (its statement_timeout, pg_cancel_backend) aborts tx like any statement's. For the rest it is like Lock.
func TryLock(ctx context.Context, tx Tx, key Key) error { return try(ctx, tx, key, false) }

// TryLockShared is TryLock with a shared lock: it fails while an exclusive one is held.
func TryLockShared(ctx context.Context, tx Tx, key Key) error { return try(ctx, tx, key, true) }

func lock(ctx context.Context, tx Tx, keys []Key, shared bool, opts []LockOption) error {
	var cfg lockConfig
	for _, o := range opts {
		if err := o.applyLock(&cfg); err != nil {
			return err
		}
	}
	c, err := newCall(keys, shared, cfg)
	switch {
	case err != nil:
		return err
	case missing(tx):
		return fmt.Errorf("%w: it is nil", ErrTx)
	case len(c.keys) == 0:
		return nil
	case ctx.Err() != nil:
		return c.notAcquired(await.Ended(ctx))
	case cfg.polling:
		return c.poll(ctx, func() error { return c.tryIn(ctx, tx) })
	}
	return c.block(ctx, tx)
}

func try(ctx context.Context, tx Tx, key Key, shared bool) error {
	c, err := newCall([]Key{key}, shared, lockConfig{})
	switch {
	case err != nil:
		return err
	case missing(tx):
		return fmt.Errorf("%w: it is nil", ErrTx)
	case ctx.Err() != nil:
		return c.notAcquired(await.Ended(ctx))
	}
	if err := c.tryIn(ctx, tx); !errors.Is(err, errBusy) {
		return err
	}
	return c.notAcquired(nil)
}

// The savepoint keeps a wait that fails from aborting the caller's transaction, and lets go
// of a lock that was granted in the same moment.
var (
	setSavepoint    = query{sql: "SAVEPOINT pglock_lock"}
	forgetSavepoint = query{sql: "RELEASE SAVEPOINT pglock_lock"}
)

// backToSavepoint goes by the simple protocol, as pgx sends what has no arguments: in an aborted
// transaction nothing but a rollback can be prepared.
const backToSavepoint = "ROLLBACK TO SAVEPOINT pglock_lock; RELEASE SAVEPOINT pglock_lock"

// block waits in the server.
func (c *call) block(ctx context.Context, tx Tx) error {
	bound, byContext := c.bound(ctx)
	saved := 0
	err := await.Run(ctx, connOf(tx), await.WhileBlocked, func(ctx context.Context) (err error) {
		saved, err = sendTogether(ctx, tx, setSavepoint, c.statement(bound), forgetSavepoint)
		return err
	})
	if err == nil {
		return nil
	}
	failure := c.explain(ctx, err, byContext)
	if saved == 0 { // not even the savepoint
		return failure
	}
	return errors.Join(failure, undo(ctx, tx))
}

// undo goes back to the savepoint. A request to cancel that a pooler delivers late may
// hit it, once.
func undo(ctx context.Context, tx Tx) error {
	return await.CleanUp(ctx, func(ctx context.Context) error {
		_, err := tx.Exec(ctx, backToSavepoint)
		if sqlState(err) == queryCanceled {
			_, err = tx.Exec(ctx, backToSavepoint)
		}
		if err != nil {
			return fmt.Errorf("%w: the savepoint could not be restored: %w", ErrTx, err)
		}
		return nil
	})
}

// tryIn asks once for each key. If one is not free it lets go of those before it, and
// returns errBusy.
func (c *call) tryIn(ctx context.Context, tx Tx) error {
	// Asking does not wait, and cancelling it would abort the transaction: let it end.
	err := await.Run(ctx, connOf(tx), await.UntilAnswered, func(ctx context.Context) error {
		if len(c.keys) == 1 {
			return c.tryKey(ctx, tx, c.keys[0])
		}
		if _, err := tx.Exec(ctx, setSavepoint.sql); err != nil {
			return err
		}
		for _, k := range c.keys {
			if err := c.tryKey(ctx, tx, k); err != nil {
				return errors.Join(err, undo(ctx, tx))
			}
		}
		_, err := tx.Exec(ctx, forgetSavepoint.sql)
		return err
	})
	if err == nil || errors.Is(err, errBusy) && !errors.Is(err, ErrTx) {
		return err
	}
	return c.explain(ctx, err, false)
}

func (c *call) tryKey(ctx context.Context, tx Tx, k Key) error {
	// By the simple protocol: in the other one the last statement's portal stays open
	// in a transaction, and with it a snapshot, for which CREATE INDEX CONCURRENTLY would wait between two tries.
	q := k.calling(c.suffixed("pg_try_advisory_xact_lock"))
	var got bool
	if err := tx.QueryRow(ctx, q.sql, append([]any{pgx.QueryExecModeSimpleProtocol}, q.args...)...).Scan(&got); err != nil {
		return err
	}
	if !got {
		return errBusy
	}
	return nil
}
