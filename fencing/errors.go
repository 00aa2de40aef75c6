package fencing

import (
	"errors"
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

var (
	// ErrStale: the grant is not, or no longer, the current one. The
	// *StaleError around it carries both tokens.
	ErrStale = errors.New("fencing: stale grant")

	// ErrSnapshot: the transaction's snapshot is older than the last change of the
	// grant, so that nothing can be said of it. Check first in the transaction, or
	// use READ COMMITTED.
	ErrSnapshot = errors.New("fencing: the transaction's snapshot is too old: check before anything else in it, or use READ COMMITTED")

	// ErrSchemaMissing: the fence's schema holds no lock tables.
	ErrSchemaMissing = schema.ErrMissing
)

// StaleError tells whose write was refused.
type StaleError struct {
	Resource string // the name of the lock
	Token    Token  // what the writer came with
	Current  Token  // the newest grant of that name, 0 if there is none
}

func (e *StaleError) Error() string {
	switch e.Current {
	case 0:
		return fmt.Sprintf("%v: %q has no grant %d", ErrStale, e.Resource, e.Token)
	case e.Token:
		return fmt.Sprintf("%v: grant %d of %q has ended", ErrStale, e.Token, e.Resource)
	}
	return fmt.Sprintf("%v: grant %d of %q was followed by %d", ErrStale, e.Token, e.Resource, e.Current)
}

// Unwrap makes errors.Is find ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }
