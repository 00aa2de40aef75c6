package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// console prints pglock's messages on stderr. Stdout is the command's.
type console struct{ quiet bool }

// errorf prints an error or a warning.
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

// describe returns the text of err for people. That of a lost lease has the last error of a renewal.
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
