package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// Exit statuses, after sysexits.h and the shell's.
const (
	statusUsage         = 64
	statusUnavailable   = 69
	statusInternal      = 70
	statusNotAcquired   = 75
	statusLost          = 76
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // plus the signal's number
)

// exitStatus ends pglock with that status; everything has been said.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// interruption ends pglock because of a signal.
type interruption struct{ signal os.Signal }

func (i interruption) Error() string { return fmt.Sprintf("ended by a signal: %v", i.signal) }

func (i interruption) status() int {
	if n, ok := i.signal.(syscall.Signal); ok {
		return statusSignal + int(n)
	}
	return statusInternal
}

// statusOf tells an error's exit status. The order matters: who gave up waiting
// because the server was gone did not meet another holder.
func statusOf(err error) int {
	var exit exitStatus
	var interrupted interruption
	var misused *usageError
	var command *commandError
	var connect *pgconn.ConnectError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &interrupted):
		return interrupted.status()
	case errors.As(err, &command):
		return command.status()
	case errors.As(err, &misused),
		isAny(err, errConnString, pglock.ErrInvalidName, pglock.ErrInvalidOption, pglock.ErrInvalidSchema):
		return statusUsage
	case errors.Is(err, pglock.ErrLost): // also if it was lost because the server was gone
		return statusLost
	case errors.As(err, &connect),
		isAny(err, pglock.ErrUnavailable, pglock.ErrSchema, pglock.ErrPrivilege, migrations.ErrPrivilege, migrations.ErrDirty):
		return statusUnavailable
	case errors.Is(err, pglock.ErrNotAcquired):
		return statusNotAcquired
	}
	return statusInternal
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
