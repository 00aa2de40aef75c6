package fencing

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/condition"
	"github.com/pglock/pglock-go/internal/schema"
)

// Refused writes.
var (
	// ErrStale: the grant is not, or no longer, the current one, or a newer one has
	// written. The *StaleError around it carries both tokens.
	ErrStale = errors.New("fencing: stale grant")

	// ErrUnfenced: a strictly protected table was written in a transaction that has
	// bound no grant.
	ErrUnfenced = errors.New("fencing: write without a grant")

	// ErrOtherLock: the row belongs to a lock of which the transaction has bound no
	// grant. The *OtherLockError around it names that lock.
	ErrOtherLock = errors.New("fencing: the row belongs to another lock")

	// ErrPaused: the transaction idled for longer than its lease had left (or than a limit
	// of the caller's own), and the server ended it. Nothing of it was written.
	ErrPaused = errors.New("fencing: the server has ended a transaction that idled for too long")

	// ErrSnapshot: the transaction's snapshot is older than the last change of the
	// grant, so that nothing can be said of it. Check first in the transaction, or
	// use READ COMMITTED.
	ErrSnapshot = errors.New("fencing: the transaction's snapshot is too old: check before anything else in it, or use READ COMMITTED")
)

// Wrong use.
var (
	// ErrNoTransaction: what was given is no transaction, or one that has ended.
	ErrNoTransaction = errors.New("fencing: not in a transaction")

	// ErrInvalidFence: no grant can have that name or token, or the text is no fence.
	ErrInvalidFence = errors.New("fencing: not a fence")

	// ErrNoTable: there is no such table, or it is something that can't be protected.
	ErrNoTable = errors.New("fencing: no table to protect")

	// ErrColumn: a column is missing, of another type, or generated.
	ErrColumn = errors.New("fencing: unfit column")

	// ErrProtected: the table is protected already, with other options.
	ErrProtected = errors.New("fencing: protected with other options")

	// ErrInvalidOption: an option makes no sense.
	ErrInvalidOption = condition.ErrInvalidOption

	// ErrInvalidSchema: PostgreSQL would not keep that schema name as it is.
	ErrInvalidSchema = schema.ErrInvalidName

	// ErrSchemaMissing: the fence's schema holds no lock tables.
	ErrSchemaMissing = schema.ErrMissing

	// ErrPrivilege: the role lacks a right.
	ErrPrivilege = condition.ErrPrivilege
)

// StaleError tells whose write was refused.
type StaleError struct {
	Resource string // the name of the lock, or what Advance and a Checker were given
	Token    Token  // what the writer came with
	Current  Token  // the newest that is known there, 0 if there is none
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

// Unwrap makes errors.Is find ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// OtherLockError tells to which lock the row belongs.
type OtherLockError struct {
	Name string // of that lock; empty if the row names none, or the whole table was meant
}

func (e *OtherLockError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%v: of no lock that is bound", ErrOtherLock)
	}
	return fmt.Sprintf("%v: %q", ErrOtherLock, e.Name)
}

// Unwrap makes errors.Is find ErrOtherLock.
func (e *OtherLockError) Unwrap() error { return ErrOtherLock }
