// Package condition holds the sentinel errors that several packages export: one
// condition is one value, from whichever package it is imported.
package condition

import "errors"

// Each is documented where it is exported.
var (
	ErrNotAcquired   = errors.New("pglock: lock not acquired")
	ErrLost          = errors.New("pglock: lock lost")
	ErrReleased      = errors.New("pglock: lock released")
	ErrClosed        = errors.New("pglock: client closed")
	ErrUnavailable   = errors.New("pglock: database unavailable")
	ErrNotFound      = errors.New("pglock: no such lock")
	ErrInvalidName   = errors.New("pglock: invalid lock name")
	ErrInvalidOption = errors.New("pglock: invalid option")
	ErrPrivilege     = errors.New("pglock: missing privilege")
)
