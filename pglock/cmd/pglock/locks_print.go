package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pglock/pglock-go/pglock"
)

// plain returns text as it is if it is one printable word, and quoted otherwise: a name can have
// blanks, and characters that move a terminal's cursor, reverse text, or can't be seen. All text of
// others is printed by plain, oneLine or escapeJSON.
func plain(text string) string {
	if text == "" {
		return "-"
	}
	for _, r := range text {
		if !unicode.IsPrint(r) || r == ' ' || r == '"' || r == '\\' || r == utf8.RuneError {
			return strconv.Quote(text)
		}
	}
	if text == "-" {
		return strconv.Quote(text)
	}
	return text
}

// tableRows is the number of rows that a table keeps to align them.
const tableRows = 500

// table prints aligned columns. It keeps tableRows rows at most: the widths of the first ones count
// for the others, and grow with them.
type table struct {
	out    io.Writer
	rows   [][]string
	widths []int
}

func (t *table) add(row ...string) error {
	if t.rows = append(t.rows, row); len(t.rows) < tableRows {
		return nil
	}
	return t.flush()
}

func (t *table) flush() error {
	for _, row := range t.rows {
		for len(t.widths) < len(row) {
			t.widths = append(t.widths, 0)
		}
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		if _, err := io.WriteString(t.out, line.String()+"\n"); err != nil {
			return err
		}
	}
	t.rows = t.rows[:0]
	return nil
}

// kinds are the kinds of locks as text.
var kinds = map[pglock.Kind]string{
	pglock.KindLock: "lock", pglock.KindSemaphore: "semaphore", pglock.KindRWLock: "readers-writer lock",
}

// show prints one lock.
func show(out io.Writer, k pglock.LockInfo, definitions []pglock.Definition) error {
	t := table{out: out}
	line := func(key, format string, args ...any) { _ = t.add(key, fmt.Sprintf(format, args...)) } // printed by flush
	line("name", "%s", plain(k.Name))
	line("state", "%s", state(k))
	if kind, known := kinds[k.Kind]; known { // unknown without a row
		line("kind", "%s", kind)
	}
	if k.Kind == pglock.KindSemaphore {
		line("permits", "%d of %d in use", k.InUse(), k.Permits)
	}
	switch d, found := pglock.DefinitionOf(definitions, k.Name); {
	case found:
		printDefinition(line, d)
	case len(definitions) > 0:
		line("defined as", "-")
	}
	shared := state(k) == stateShared // then the grants below have these lines
	if k.Token > 0 && !shared {
		line("token", "%d", k.Token)
	}
	if k.Holder != "" {
		line("holder", "%s", plain(k.Holder))
	}
	if k.Held() && !shared {
		line("since", "%s (%s)", k.AcquiredAt.UTC().Format(time.RFC3339), short(k.HeldFor))
		line("remaining", "%s unless renewed", short(k.Remaining))
	}
	if k.ReleaseRequested {
		line("asked to release", "%s", plain(k.ReleaseReason))
	}
	labelKey := "label"
	if k.Holder == "" {
		labelKey = "last label"
	}
	for _, label := range labels(k.Labels) {
		line(labelKey, "%s", label)
	}
	for i, g := range k.Grants {
		if g.Exclusive {
			continue // above
		}
		what := "reader"
		if k.Kind == pglock.KindSemaphore {
			what = "1 permit"
			if g.Permits != 1 {
				what = fmt.Sprintf("%d permits", g.Permits)
			}
		}
		text := []string{fmt.Sprintf("token %d, %s, %s, for %s, remaining %s", g.Token, plain(g.Holder), what, short(g.HeldFor), short(g.Remaining))}
		if g.ReleaseRequested {
			text = append(text, "asked to release: "+plain(g.ReleaseReason))
		}
		line(fmt.Sprintf("grant %d", i+1), "%s", strings.Join(append(text, labels(g.Labels)...), ", "))
	}
	if k.Last.End != "" {
		how := plain(string(k.Last.End))
		if k.Last.Reason != "" {
			how += ", " + plain(k.Last.Reason)
		}
		line("last holder", "%s, %s at %s", plain(k.Last.Holder), how, k.Last.EndedAt.UTC().Format(time.RFC3339))
	}
	for i, w := range k.Waiters {
		line(fmt.Sprintf("waiter %d", i+1), "%s, for %s", plain(w.Holder), short(w.Waited))
	}
	return t.flush()
}

// labels returns labels as text, in the order of their keys.
func labels(m map[string]string) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, plain(key)+"="+plain(m[key]))
	}
	return all
}

// lockJSON is a lock in JSON. Durations are in seconds.
type lockJSON struct {
	Name             string            `json:"name"`
	State            string            `json:"state"`
	Token            pglock.Token      `json:"token"`
	Holder           string            `json:"holder,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	Since            *time.Time        `json:"since,omitempty"`
	HeldFor          float64           `json:"held_for,omitempty"`
	Remaining        float64           `json:"remaining,omitempty"`
	ReleaseRequested bool              `json:"release_requested,omitempty"`
	ReleaseReason    string            `json:"release_reason,omitempty"`
	Last             *lastJSON         `json:"last,omitempty"`
	Kind             pglock.Kind       `json:"kind,omitempty"`
	Permits          int               `json:"permits,omitempty"`
	InUse            int               `json:"in_use,omitempty"`
	Grants           []grantJSON       `json:"grants,omitempty"`
	Definition       *definitionJSON   `json:"definition,omitempty"`
	Waiters          []waiterJSON      `json:"waiters"`
}

type grantJSON struct {
	Token            pglock.Token      `json:"token"`
	Holder           string            `json:"holder"`
	Labels           map[string]string `json:"labels,omitempty"`
	Permits          int               `json:"permits,omitempty"`
	Exclusive        bool              `json:"exclusive,omitempty"`
	Since            time.Time         `json:"since"`
	HeldFor          float64           `json:"held_for"`
	Remaining        float64           `json:"remaining"`
	ReleaseRequested bool              `json:"release_requested,omitempty"`
	ReleaseReason    string            `json:"release_reason,omitempty"`
}

type lastJSON struct {
	Holder  string     `json:"holder"`
	End     pglock.End `json:"end"`
	EndedAt time.Time  `json:"ended_at"`
	Reason  string     `json:"reason,omitempty"`
}

type waiterJSON struct {
	Holder string  `json:"holder"`
	Ticket int64   `json:"ticket"`
	Waited float64 `json:"waited"`
}

// printJSON prints a lock as JSON, in one line unless indented.
func printJSON(out io.Writer, k pglock.LockInfo, definitions []pglock.Definition, indented bool) error {
	j := lockJSON{
		Name: k.Name, State: state(k), Token: k.Token, Holder: k.Holder, Labels: k.Labels,
		HeldFor: k.HeldFor.Seconds(), Remaining: k.Remaining.Seconds(),
		ReleaseRequested: k.ReleaseRequested, ReleaseReason: k.ReleaseReason, Waiters: []waiterJSON{},
	}
	if k.Held() && j.State != stateShared {
		j.Since = &k.AcquiredAt
	}
	j.Definition = definitionOf(definitions, k.Name)
	j.Kind, j.Permits, j.InUse = k.Kind, k.Permits, k.InUse()
	for _, g := range k.Grants {
		j.Grants = append(j.Grants, grantJSON{
			g.Token, g.Holder, g.Labels, g.Permits, g.Exclusive, g.AcquiredAt, g.HeldFor.Seconds(), g.Remaining.Seconds(),
			g.ReleaseRequested, g.ReleaseReason,
		})
	}
	if k.Last.End != "" {
		j.Last = &lastJSON{k.Last.Holder, k.Last.End, k.Last.EndedAt, k.Last.Reason}
	}
	for _, w := range k.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Holder, w.Ticket, w.Waited.Seconds()})
	}
	return encodeJSON(out, j, indented)
}

// encodeJSON prints a value as JSON that is safe for a terminal.
func encodeJSON(out io.Writer, value any, indented bool) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if indented {
		encoder.SetIndent("", "  ")
	}
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(out, escapeJSON(text.String()))
	return err
}

// escapeJSON escapes what encoding/json leaves as it is and a terminal may obey or hide: control
// characters from 0x7f on, and format characters. They occur in strings only.
func escapeJSON(text string) string {
	var safe strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			safe.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&safe, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&safe, `\u%04x`, r)
		}
	}
	return safe.String()
}
