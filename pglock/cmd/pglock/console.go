package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/once"
)

// console prints pglock's messages on stderr, because stdout is the command's.
type console struct{ quiet bool }

func (console) errorf(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "pglock: "+text.OneLine(fmt.Sprintf(format, args...)))
}

// infof prints a message unless --quiet is given.
func (c console) infof(format string, args ...any) {
	if !c.quiet {
		c.errorf(format, args...)
	}
}

// report prints err, unless it was printed before, and returns pglock's exit status. If the reader
// of stdout has ended, as in `pglock ls | head`, it prints nothing.
func report(err error) int {
	var printed exitStatus
	var write *fs.PathError
	if errors.As(err, &write) && write.Path == os.Stdout.Name() && errors.Is(write, syscall.EPIPE) {
		return statusSignal + int(syscall.SIGPIPE)
	}
	if err != nil && !errors.As(err, &printed) {
		console{}.errorf("%s", describe(err))
	}
	return exitStatusOf(err)
}

// describe returns err for the terminal, a lost lease with the last error of a renewal.
func describe(err error) string {
	var lost *pglock.LostError
	if !errors.As(err, &lost) {
		return errs.Reason(err)
	}
	text := fmt.Sprintf("lost the lock %q (token %d): %s", lost.Name, lost.Token, lost.Reason)
	if lost.Cause != nil {
		text += fmt.Sprintf(" (last renewal: %s)", errs.Reason(lost.Cause))
	}
	return text
}

// Exit statuses: those of sysexits.h, and those of the shell from 126 on.
const (
	statusNoGrant       = 1 // there is no such grant, lock or key
	statusUsage         = 64
	statusUnavailable   = 69
	statusInternal      = 70
	statusNotAcquired   = 75
	statusLost          = 76
	statusSuperseded    = 77
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // plus the signal's number
)

// exitStatus is an error that sets pglock's exit status, and whose message was printed before.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
func (s exitStatus) status() int   { return int(s) }

type failure struct {
	code int
	error
}

func (f *failure) status() int   { return f.code }
func (f *failure) Unwrap() error { return f.error }

func interruption(sig os.Signal) *failure {
	return &failure{statusSignal + int(sig.(syscall.Signal)), fmt.Errorf("ended by a signal: %v", sig)}
}

// exitStatusOf returns the exit status for err. The order of the cases matters: a wait that ended
// because the server was unreachable wraps ErrNotAcquired too.
func exitStatusOf(err error) int {
	var own interface{ status() int }
	var connect *pgconn.ConnectError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.status()
	case isAny(err, errConnString, pglock.ErrInvalidOption, migrations.ErrNoRole, once.ErrInvalidKey):
		return statusUsage
	case isAny(err, pglock.ErrNotFound, once.ErrNotFound, once.ErrInProgress): // of a job, or a key
		return statusNoGrant
	case errors.Is(err, pglock.ErrLost): // before ErrUnavailable, which may be the reason of the loss
		return statusLost
	case errors.As(err, &connect),
		isAny(err, pglock.ErrUnavailable, pglock.ErrSchema, pglock.ErrPrivilege, migrations.ErrDirty, migrations.ErrUntrusted):
		return statusUnavailable
	case errors.Is(err, pglock.ErrSuperseded):
		return statusSuperseded
	case errors.Is(err, pglock.ErrNotAcquired):
		return statusNotAcquired
	}
	return statusInternal
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
