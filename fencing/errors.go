package fencing

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// Refused writes.
var (
	// ErrStale: the grant is not the current one, or a newer grant has written. The *StaleError
	// around it carries both tokens.
	ErrStale = errors.New("fencing: stale grant")

	// ErrUnfenced: a transaction that has bound no grant wrote to a strictly protected table.
	ErrUnfenced = errors.New("fencing: write without a grant")

	// ErrOtherLock: the row belongs to a lock whose grant the transaction has not bound. The
	// error's text names that lock.
	ErrOtherLock = errors.New("fencing: the row belongs to another lock")

	// ErrPaused: the transaction was idle for longer than its lease had left, or longer than a
	// limit of the caller's own, so the server ended it and nothing was written.
	ErrPaused = errors.New("fencing: the server has ended a transaction that was idle for too long")

	// ErrSnapshot: the transaction's snapshot is older than the last change of the grant.
	ErrSnapshot = errors.New("fencing: the transaction's snapshot is too old: check first in it, or use READ COMMITTED")
)

// ErrShared: the grant is one of several at the same time, of a semaphore or a reader. Concurrent
// holders have no order, so it can be checked but not bound.
var ErrShared = errors.New("fencing: shared grant")

// ErrFull: the resource is new, and the Checker or the table of Advance keeps no more, which does
// not affect known resources.
var ErrFull = errors.New("fencing: too many resources")

// Wrong use.
var (
	// ErrNoTransaction: the argument is not a transaction, or the transaction has ended.
	ErrNoTransaction = errors.New("fencing: not in a transaction")

	// ErrInvalidFence: no grant can have that name or token, or the text is not a fence.
	ErrInvalidFence = errors.New("fencing: not a fence")

	// ErrNoTable: the table does not exist, or it can't be protected.
	ErrNoTable = errors.New("fencing: no table to protect")

	// ErrColumn: a column is missing, generated, or of a type that can't be used.
	ErrColumn = errors.New("fencing: unfit column")

	// ErrProtected: the table is already protected, with other options.
	ErrProtected = errors.New("fencing: protected with other options")

	// ErrInvalidOption: an option is invalid, and the error names the rule.
	ErrInvalidOption = errs.ErrInvalidOption

	// ErrSchemaMissing: the fence's schema has no lock tables.
	ErrSchemaMissing = schema.ErrMissing

	// ErrPrivilege: the role lacks a right.
	ErrPrivilege = errs.ErrPrivilege
)

var errNilTx = errs.Errorf("%w: it is nil: pass the transaction that writes", ErrNoTransaction)

// StaleError reports whose write was refused.
type StaleError struct {
	Resource string // the name of the lock, or the resource of Advance or a Checker
	Token    Token  // the writer's
	Current  Token  // the newest token of the resource, 0 if it has none
}

func (e *StaleError) Error() string {
	switch e.Current {
	case 0:
		return fmt.Sprintf("%v: %q has no grant %d", ErrStale, e.Resource, e.Token)
	case e.Token:
		return fmt.Sprintf("%v: grant %d of %q has ended", ErrStale, e.Token, e.Resource)
	}
	return fmt.Sprintf("%v: grant %d of %q, where %d is the newest", ErrStale, e.Token, e.Resource, e.Current)
}

func (e *StaleError) Unwrap() error { return ErrStale }
