package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// console prints pglock's messages on stderr. Stdout is the command's.
type console struct{ quiet bool }

// errorf prints an error or a warning.
func (console) errorf(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "pglock: "+oneLine(fmt.Sprintf(format, args...)))
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

// describe returns the text of err for people.
func describe(err error) string {
	var lost *pglock.LostError
	var wait *pglock.WaitError
	var busy *pglock.BusyError
	switch {
	case errors.As(err, &lost):
		text := fmt.Sprintf("lost the lock %q (token %d): %s", lost.Name, lost.Token, lost.Reason)
		if lost.Cause != nil {
			text += fmt.Sprintf(" (last renewal: %s)", errs.Reason(lost.Cause))
		}
		return text
	case exitStatusOf(err) != statusNotAcquired:
		return errs.Reason(err)
	case errors.As(err, &wait) && errors.As(wait.Last, &busy):
		return fmt.Sprintf("gave up after %v: %s", wait.Waited.Round(time.Millisecond), describeBusy(busy))
	case errors.As(err, &busy):
		return describeBusy(busy)
	}
	return errs.Reason(err)
}

func describeBusy(e *pglock.BusyError) string {
	switch {
	case e.Holder == "" && e.Remaining > 0:
		return fmt.Sprintf("lock %q was released, and WithMinHold keeps it from others for another %v",
			e.Name, e.Remaining.Round(time.Millisecond))
	case e.Holder == "":
		return fmt.Sprintf("lock %q is free, but a transaction still uses its row", e.Name)
	}
	return fmt.Sprintf("lock %q is held by %s (token %d): it expires in %v unless renewed",
		e.Name, plain(e.Holder), e.Token, e.Remaining.Round(time.Millisecond))
}

// oneLine joins the lines of text, so that every line of a log has pglock's prefix. It replaces all
// characters that plain quotes: those that move a cursor, reverse text, or can't be seen.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }), " ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
