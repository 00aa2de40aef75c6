// Package text turns text of others, and figures, into text for operators.
package text

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pglock/pglock-go/pglock/inspect"
)

// Plain returns text as it is if it is one printable word, and quoted otherwise: a name can have
// blanks, and characters that move a terminal's cursor, reverse text, or can't be seen. All text of
// others is printed in a terminal by Plain, Quote, OneLine or escapeJSON of the command.
func Plain(text string) string {
	quoted := Quote(text)
	switch {
	case text == "":
		return "-"
	case text == "-", strings.ContainsAny(text, " \ufffd"), quoted != `"`+text+`"`:
		return quoted
	}
	return text
}

// Quote quotes text as %q does, and also writes out what looks like nothing.
func Quote(text string) string {
	if strings.ContainsFunc(text, blank) {
		return strconv.QuoteToASCII(text)
	}
	return strconv.Quote(text)
}

// OneLine joins the lines of text, so that every line of a log has pglock's prefix. It replaces all
// characters that Plain quotes: those that move a cursor, reverse text, or can't be seen.
func OneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }), " ")
	return strings.Map(func(r rune) rune {
		if Visible(r) {
			return r
		}
		return '?'
	}, text)
}

// Visible reports whether a character can be seen, and does not change how others are seen.
func Visible(r rune) bool { return unicode.IsPrint(r) && !blank(r) }

// blank reports whether a character looks like nothing although Unicode calls it a letter, a mark or a symbol.
func blank(r rune) bool {
	return r == '\u2800' || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Short returns a duration with its two largest units, or three digits.
func Short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= 10*time.Second:
		return d.Truncate(time.Second).String()
	case d >= time.Second:
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Millisecond).String()
}

// List returns texts of others as one, with commas.
func List(all []string) string {
	plain := make([]string, len(all))
	for i, s := range all {
		plain[i] = Plain(s)
	}
	return strings.Join(plain, ", ")
}

// Waiters returns how many clients wait for a lock, or "?" if that is not known.
func Waiters(l inspect.Lock) string {
	if l.Standby {
		return "?"
	}
	return strconv.Itoa(len(l.Waiters))
}

// Standby says what is different if the server is a standby, and nothing otherwise.
func Standby(s inspect.Server) string {
	switch {
	case !s.Standby:
		return ""
	case s.Behind == 0:
		return "a standby, up to date: who waits is not known here"
	}
	return "a standby, at most " + Short(s.Behind) + " behind: who waits is not known here"
}

// Labels returns labels as text, in the order of their keys.
func Labels(m map[string]string) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, Plain(key)+"="+Plain(m[key]))
	}
	return all
}

// Share describes what a holder has of a lock, or what a waiter wants, which is "alone" for a lock
// with one holder.
func Share(kind inspect.Kind, permits int, exclusive bool) string {
	switch {
	case kind == inspect.Semaphore && permits == 1:
		return "1 permit"
	case kind == inspect.Semaphore:
		return fmt.Sprintf("%d permits", permits)
	case kind == inspect.RWLock && exclusive:
		return "writer"
	case kind == inspect.RWLock:
		return "reader"
	}
	return "alone"
}

// Action describes an action of an operator in one line.
func Action(a inspect.Action) string {
	about := Plain(a.Name)
	if a.Token > 0 {
		about += fmt.Sprintf(" (token %d)", a.Token)
	}
	return fmt.Sprintf("%s %s, by %s as %s: %s", OneLine(a.What), about, Plain(a.Role), Plain(a.Application), OneLine(a.Reason))
}
