package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// console is how pglock speaks: on stderr, since stdout is the command's.
type console struct{ quiet bool }

// say prints what a person must know.
func (console) say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "pglock: "+oneLine(fmt.Sprintf(format, args...)))
}

// note prints what is good to know, unless pglock shall be quiet.
func (c console) note(format string, args ...any) {
	if !c.quiet {
		c.say(format, args...)
	}
}

// report says why pglock ends, if that has not been said, and returns its status.
func report(err error) int {
	var said exitStatus
	if err != nil && !errors.As(err, &said) {
		console{}.say("%s", describe(err))
	}
	return statusOf(err)
}

// describe puts an error into words for a person at a terminal.
func describe(err error) string {
	var lost *pglock.LostError
	var wait *pglock.WaitError
	var busy *pglock.BusyError
	switch {
	case errors.As(err, &lost):
		text := fmt.Sprintf("lost the lock %q (token %d): %s", lost.Name, lost.Token, lost.Reason)
		if lost.Cause != nil {
			text += fmt.Sprintf(" (the last renewal: %s)", plain(lost.Cause))
		}
		return text
	case statusOf(err) != statusNotAcquired:
		return plain(err)
	case errors.As(err, &wait) && errors.As(wait.Last, &busy):
		return fmt.Sprintf("gave up after %v: %s", wait.Waited.Round(time.Millisecond), describeBusy(busy))
	case errors.As(err, &busy):
		return describeBusy(busy)
	}
	return plain(err)
}

func describeBusy(e *pglock.BusyError) string {
	if e.Holder == "" {
		return fmt.Sprintf("lock %q is changing hands, or a guarded transaction still uses it", e.Name)
	}
	return fmt.Sprintf("lock %q is held by %s (token %d) for another %v unless renewed",
		e.Name, e.Holder, e.Token, e.Remaining.Round(time.Millisecond))
}

// plain is an error's text without the name of the package that it begins with:
// pglock's own name is in front of every line already.
func plain(err error) string {
	text := err.Error()
	for _, name := range []string{"pglock: ", "leasetable: ", "migrations: "} {
		text = strings.TrimPrefix(text, name)
	}
	return text
}

// oneLine joins lines, so that each line of a log has the prefix, and shows
// what would steer a terminal: holders' names are anybody's text.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), " ")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
