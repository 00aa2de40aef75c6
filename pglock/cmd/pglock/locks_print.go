package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// newTable returns a writer that aligns cells, and keeps all rows until Flush.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

var kinds = map[inspect.Kind]string{
	inspect.OneHolder: "lock", inspect.Semaphore: "semaphore", inspect.RWLock: "readers-writer lock",
}

type lines struct{ *tabwriter.Writer }

func (t lines) add(key, format string, args ...any) {
	fmt.Fprintf(t, key+"\t"+format+"\n", args...) // Flush returns the error
}

// show prints one lock with what s has of it: the sessions that guard it or are its holders', and the
// actions of operators. The sessions in s with an advisory lock are those of the lock.
func show(out io.Writer, k inspect.Lock, s inspect.Snapshot) error {
	t := lines{newTable(out)}
	t.add("name", "%s", text.Plain(k.Name))
	for _, u := range s.Advisory {
		what := "held"
		if !u.Granted {
			what = "waited for"
		}
		t.add("advisory lock", "%s by process %d, %s, in a transaction for %s", what, u.PID, text.Plain(u.ApplicationName), text.Short(u.TransactionAge))
	}
	t.addState(k)
	for _, g := range guardsOf(k, s.Guards) {
		t.add("guarded", "by %s", describeGuard(g))
	}
	for i, g := range k.Grants {
		if !g.Exclusive { // the lines of an exclusive one are those of the lock
			t.add(fmt.Sprintf("grant %d", i+1), "%s", describeGrant(k.Kind, g))
		}
	}
	if last := k.Previous; last.End != "" {
		how := text.Plain(last.End)
		if last.Reason != "" {
			how += ", " + text.Plain(last.Reason)
		}
		t.add("last holder", "%s, %s at %s", text.Plain(last.Holder), how, last.EndedAt.UTC().Format(time.RFC3339))
	}
	for _, g := range k.Live() {
		for _, session := range display.SessionsOf(s, g.Holder) {
			t.add("session", "process %d of %s, from %s, %s", session.PID, text.Plain(g.Holder), cmp.Or(session.ClientAddr, "this host or hidden"), cmp.Or(session.State, "state hidden"))
		}
	}
	for i, w := range k.Waiters {
		who := text.Plain(w.Holder)
		if k.Kind != inspect.OneHolder {
			who += ", " + text.Share(k.Kind, w.Permits, w.Exclusive)
		}
		t.add(fmt.Sprintf("waiter %d", i+1), "%s, for %s", who, text.Short(w.Waited))
	}
	for _, a := range s.Actions {
		if a.Name == k.Name {
			t.add("action", "%s: %s", a.At.UTC().Format(time.RFC3339), text.Action(a))
		}
	}
	return t.Flush()
}

// addState adds the lines about the lock itself and its only grant.
func (t lines) addState(k inspect.Lock) {
	t.add("state", "%s", k.State())
	if kind, known := kinds[k.Kind]; known { // unknown without a row
		t.add("kind", "%s", kind)
	}
	if k.Kind == inspect.Semaphore {
		t.add("permits", "%d of %d in use", k.InUse(), k.Permits)
	}
	shared := k.State() == "shared" // then each grant has a line
	if k.Token > 0 && !shared {
		t.add("token", "%d", k.Token)
	}
	labelKey := "last label"
	if k.Holder != "" {
		t.add("holder", "%s", text.Plain(k.Holder))
		labelKey = "label"
	}
	if k.Held() && !shared {
		t.add("since", "%s (%s)", k.AcquiredAt.UTC().Format(time.RFC3339), text.Short(k.HeldFor))
		t.add("remaining", "%s unless renewed", text.Short(k.Remaining))
	}
	if k.ReleaseRequested {
		t.add("asked to release", "%s", text.Plain(k.ReleaseReason))
	}
	for _, label := range text.Labels(k.Labels) {
		t.add(labelKey, "%s", label)
	}
}

func describeGuard(g inspect.Guard) string {
	who := []string{fmt.Sprintf("process %d", g.PID)}
	if g.Prepared != "" {
		who[0] = "prepared transaction " + text.Plain(g.Prepared)
	}
	if g.Application != "" {
		who = append(who, text.Plain(g.Application))
	}
	if g.Age > 0 {
		who = append(who, fmt.Sprintf("%s for %s", cmp.Or(g.State, "in a transaction"), text.Short(g.Age)))
	}
	if g.Query != "" {
		who = append(who, fmt.Sprintf("last statement %.100s", text.OneLine(g.Query)))
	}
	return strings.Join(who, ", ")
}

func describeGrant(kind inspect.Kind, g inspect.Grant) string {
	parts := []string{fmt.Sprintf("token %d, %s, %s, for %s, remaining %s",
		g.Token, text.Plain(g.Holder), text.Share(kind, g.Permits, g.Exclusive), text.Short(g.HeldFor), text.Short(g.Remaining))}
	if g.ReleaseRequested {
		parts = append(parts, "asked to release: "+text.Plain(g.ReleaseReason))
	}
	return strings.Join(append(parts, text.Labels(g.Labels)...), ", ")
}

// seconds returns a duration to the millisecond.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

type lockJSON struct {
	Name  string `json:"name"`
	State string `json:"state"`
	grantJSON
	Last    inspect.Previous `json:"last,omitzero"`
	Kind    inspect.Kind     `json:"kind,omitempty"`
	InUse   int              `json:"in_use,omitempty"`
	Grants  []grantJSON      `json:"grants,omitempty"`
	Waiters []waiterJSON     `json:"waiters"`
}

// grantJSON is a grant, or the current grant of a lock with one holder. A lock has Permits too.
type grantJSON struct {
	Token            pglock.Token      `json:"token"`
	Holder           string            `json:"holder,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	Permits          int               `json:"permits,omitempty"`
	Exclusive        bool              `json:"exclusive,omitempty"`
	Since            *time.Time        `json:"since,omitempty"`
	HeldFor          float64           `json:"held_seconds,omitempty"`
	Remaining        float64           `json:"remaining_seconds,omitempty"`
	ReleaseRequested bool              `json:"release_requested,omitempty"`
	ReleaseReason    string            `json:"release_reason,omitempty"`
}

type waiterJSON struct {
	Holder string  `json:"holder"`
	Ticket int64   `json:"ticket"`
	Waited float64 `json:"waited_seconds"`

	Permits   int  `json:"permits,omitempty"`
	Exclusive bool `json:"exclusive,omitempty"`
}

func printJSON(out io.Writer, k inspect.Lock, indented bool) error {
	j := lockJSON{
		Name: k.Name, State: k.State(), Last: k.Previous, Kind: k.Kind, InUse: k.InUse(), Waiters: []waiterJSON{},
		grantJSON: grantJSON{k.Token, k.Holder, k.Labels, k.Permits, false, nil, seconds(k.HeldFor), seconds(k.Remaining), k.ReleaseRequested, k.ReleaseReason},
	}
	if k.Held() && j.State != "shared" {
		j.Since = &k.AcquiredAt
	}
	for _, g := range k.Grants {
		j.Grants = append(j.Grants, grantJSON{
			g.Token, g.Holder, g.Labels, g.Permits, g.Exclusive, &g.AcquiredAt, seconds(g.HeldFor), seconds(g.Remaining), g.ReleaseRequested, g.ReleaseReason,
		})
	}
	for _, w := range k.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Holder, w.Ticket, seconds(w.Waited), w.Permits, w.Exclusive})
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
// characters from 0x7f on, and characters that can't be seen, which occur in strings only.
func escapeJSON(s string) string {
	var safe strings.Builder
	for _, r := range s {
		if r == '\n' || text.Visible(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	return safe.String()
}
