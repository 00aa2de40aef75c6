package fencing

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
)

const (
	checkSQL = "SELECT is_current, newest, isolation FROM pglock.check_fence($1::text, $2::bigint)"
	bindSQL  = "SELECT pglock.bind($1::text, $2::bigint)"
)

// Check verifies that f is the current grant of its lock, and keeps it current until tx ends. tx
// must be a transaction on the database of the locks, from any pool and in any process.
//
// On success the lock is not granted to another holder before tx ends, even if the lease expires
// meanwhile: what tx writes is the current holder's. So that a holder that is paused in tx does not
// keep the lock forever, the server ends tx when it has been idle for as long as the lease had
// left. (A shorter idle_in_transaction_session_timeout of the caller's stays in force.) Explain
// turns the error of the next call on tx into ErrPaused.
//
// If f is not the current grant, or has expired or been released, the error is a *StaleError
// (errors.Is ErrStale). tx stays usable, but writes in it are not protected: roll back. Protected
// tables need Bind, which does the same and more.
//
// At REPEATABLE READ and SERIALIZABLE, Check should be the first statement of the transaction. If
// the snapshot is older than the lease's last renewal or than a takeover, Check may be unable to
// decide, and the error is ErrSnapshot: roll back and begin again.
//
// The error is ErrInvalidFence if no grant can have that fence, and ErrNoTransaction if tx is nil;
// Check then sends nothing. It is ErrSchemaMissing if the schema has no lock tables, and
// ErrPrivilege if the role lacks a right. Any other error is the server's, such as that of a
// read-only transaction, which can't keep a grant.
//
// Check takes one round trip. ctx bounds it. If ctx ends during the call, pgx closes the
// connection.
func Check(ctx context.Context, tx Tx, f Fence) error {
	if err := checkArgs(tx, f); err != nil {
		return err
	}
	var current bool
	var newest Token
	var isolation string
	err := tx.QueryRow(ctx, render(checkSQL, f.schemaName()), f.Name, int64(f.Token)).Scan(&current, &newest, &isolation)
	if err != nil {
		return explainCall(f.schemaName(), fmt.Sprintf("check %q", f), err)
	}
	return checkResult(f, current, newest, isolation)
}

// checkResult returns what the answer of check_fence means for f.
func checkResult(f Fence, current bool, newest Token, isolation string) error {
	switch {
	case !current && isolation != "read committed" && newest <= f.Token:
		return errs.Errorf("%w: check %q at %s", ErrSnapshot, f, isolation)
	case !current:
		return &StaleError{Resource: f.Name, Token: f.Token, Current: newest}
	}
	return nil
}

// Bind checks the grant f as Check does, and lets tx write to protected tables as that grant until
// tx ends: the triggers write its token to the rows. Bind changes nothing else in the session.
//
// A transaction may bind the grants of several locks, for instance to move money between two
// accounts. In a table with NamedBy, each row then needs the grant of its own lock. In any other
// table the grant that was bound last applies. A rollback to a savepoint before Bind undoes it.
//
// The errors are those of Check. Unlike Check, a refusal aborts tx: a caller that ignores the error
// can't write either.
func Bind(ctx context.Context, tx Tx, f Fence) error {
	if err := checkArgs(tx, f); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, render(bindSQL, f.schemaName()), f.Name, int64(f.Token))
	return explainCall(f.schemaName(), fmt.Sprintf("bind %q", f), err)
}

// checkArgs returns an error if tx is nil or no grant can have the fence.
func checkArgs(tx Tx, f Fence) error {
	if tx == nil {
		return ErrNoTransaction
	}
	return f.check()
}
