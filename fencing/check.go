package fencing

import (
	"context"
	"fmt"
)

const checkSQL = "SELECT is_current, newest, isolation FROM pglock.check_fence($1::text, $2::bigint)"

// Check holds the grant f until the end of tx, which must be a transaction on
// the database of the locks, from any pool and in any process.
//
// On success nobody else can be granted the lock before tx ends, also if the
// lease ends meanwhile: what tx writes is the current holder's. So that a holder
// paused in tx can't keep the lock for ever, the server ends tx when it has been
// idle for as long as the lease had left (a shorter
// idle_in_transaction_session_timeout of the caller's stays); Explain makes
// ErrPaused of what the next call on tx returns then.
//
// If the grant is not the current one, or has ended, it returns a *StaleError
// (errors.Is ErrStale). tx stays usable, but a write in it is not protected: roll
// back. Protected tables want Bind, which does the same and more.
//
// At REPEATABLE READ and SERIALIZABLE it should be the transaction's first statement:
// where the snapshot is older than the lease's last renewal or than a takeover, it may
// be impossible to tell, and the error is then ErrSnapshot: roll back and begin anew.
//
// A fence that no grant can have is ErrInvalidFence, and what is no transaction
// ErrNoTransaction; nothing is sent then. ErrSchemaMissing and ErrPrivilege tell what
// they say. Any other error is the server's, such as that of a read-only transaction, which
// can't hold a grant.
//
// It takes one round trip. ctx bounds it; as with any pgx call, a ctx that ends
// during it closes the connection.
func Check(ctx context.Context, tx Tx, f Fence) error {
	if err := ready(tx, f); err != nil {
		return err
	}
	var current bool
	var newest Token
	var isolation string
	err := tx.QueryRow(ctx, render(checkSQL, f.schemaName()), f.Name, int64(f.Token)).Scan(&current, &newest, &isolation)
	switch {
	case err != nil:
		return explainCall(f.schemaName(), fmt.Sprintf("check of %v", f), err)
	case !current && isolation != "read committed" && newest <= f.Token:
		return fmt.Errorf("%w: check of %v at %s", ErrSnapshot, f, isolation)
	case !current:
		return &StaleError{Resource: f.Name, Token: f.Token, Current: newest}
	}
	return nil
}

// ready returns nil if the fence can be checked in tx.
func ready(tx Tx, f Fence) error {
	if tx == nil {
		return ErrNoTransaction
	}
	return f.check()
}
