package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// hostile is a name that moves a cursor, reverses text, and is wide.
const hostile = "\x1b[2J\u202e日本\n\x07"

var began = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// fake is a Client with a fixed answer. It records the actions.
type fake struct {
	snapshot inspect.Snapshot
	queries  []inspect.Query
	acts     []string
	err      error
}

func (f *fake) Schema() string { return "pglock" }

func (f *fake) Snapshot(_ context.Context, q inspect.Query) (inspect.Snapshot, error) {
	f.queries = append(f.queries, q)
	return f.snapshot, f.err
}

func (f *fake) Get(_ context.Context, name string) (inspect.Lock, error) {
	return inspect.Lock{Name: name}, f.err
}

func (f *fake) RequestRelease(_ context.Context, name string, token fencing.Token, reason string) error {
	f.acts = append(f.acts, fmt.Sprintf("ask %q %d %s", name, token, reason))
	return f.err
}

func (f *fake) Revoke(_ context.Context, name string, token fencing.Token, reason string) error {
	f.acts = append(f.acts, fmt.Sprintf("revoke %q %d %s", name, token, reason))
	return f.err
}

func (f *fake) resolve(_ context.Context, key string, token fencing.Token, happened bool, reason string) error {
	f.acts = append(f.acts, fmt.Sprintf("resolve %q %d %t %s", key, token, happened, reason))
	return f.err
}

// everything is a snapshot with a row on each screen.
func everything() inspect.Snapshot {
	lock := inspect.Lock{Name: "account:17", Kind: inspect.OneHolder, Token: 7, Version: 10, Holder: "a", HeldFor: time.Minute, Remaining: 20 * time.Second,
		Labels: map[string]string{"payload": "10.0.0.7"}, Waiters: []inspect.Waiter{{Holder: "b", Ticket: 8, Waited: time.Second}}}
	evil := inspect.Lock{Name: hostile, Kind: inspect.OneHolder, Token: 8, Holder: hostile, Remaining: time.Second, Labels: map[string]string{hostile: hostile},
		Waiters: []inspect.Waiter{{Holder: hostile}}}
	sem := inspect.Lock{Name: "sem", Kind: inspect.Semaphore, Permits: 3, Grants: []inspect.Grant{{Holder: "c", Token: 9, Permits: 2, Remaining: time.Second}}}
	return inspect.Snapshot{
		At: began, Server: inspect.Server{Version: "15.1", Database: hostile, Held: 3}, Matching: 3, Locks: []inspect.Lock{lock, evil, sem},
		Once:      []inspect.Attempt{{Key: hostile, Token: 1, Holder: hostile, StartedAt: began.Add(-time.Hour), CreatedAt: began.Add(-time.Hour)}},
		Schedules: []inspect.Schedule{{Job: hostile, Last: began.Add(-2 * time.Hour), Next: began.Add(-time.Hour), Error: hostile, Zone: hostile}},
		Advisory:  []advisory.Usage{{Key: advisory.KeyFromInt64(1), Granted: true, ApplicationName: hostile}},
	}
}

// start returns a model that has read the snapshot.
func start(t *testing.T, f *fake, cfg Config) *model {
	t.Helper()
	cfg.Client, cfg.Every, cfg.Operator, cfg.Screen, cfg.Resolve = f, 2*time.Second, "ann@ops", cmp.Or(cfg.Screen, "held"), f.resolve
	cfg.Doctor = func(context.Context) []doctor.Result {
		return []doctor.Result{{Check: "server", Level: doctor.Fail, Found: hostile, Remedy: hostile}}
	}
	cfg.Show = func(out io.Writer, l inspect.Lock, _ inspect.Snapshot) error {
		_, err := fmt.Fprintf(out, "all of %q\n", l.Name)
		return err
	}
	m := newModel(t.Context(), cfg)
	do(t, m, m.Init())
	return m
}

// do runs a command and gives the model its message, until there is a timer.
func do(t *testing.T, m *model, cmd tea.Cmd) {
	t.Helper()
	if cmd == nil {
		return
	}
	answers := make(chan tea.Msg, 1)
	go func() { answers <- cmd() }()
	select {
	case msg := <-answers:
		if batch, ok := msg.(tea.BatchMsg); ok {
			for _, cmd := range batch {
				do(t, m, cmd)
			}
			return
		}
		_, next := m.Update(msg)
		do(t, m, next)
	case <-time.After(300 * time.Millisecond): // a timer of two seconds
	}
}

// typed presses keys: a single letter is text.
func typed(t *testing.T, m *model, keys ...string) {
	t.Helper()
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "space": tea.KeySpace, "backspace": tea.KeyBackspace}
	for _, key := range keys {
		msg := tea.KeyPressMsg{Code: codes[key]}
		if msg.Code == 0 {
			msg = tea.KeyPressMsg{Code: []rune(key)[0], Text: key}
		}
		_, cmd := m.Update(msg)
		do(t, m, cmd)
	}
}

// screenText returns what is drawn, without colors.
func screenText(m *model) string { return ansi.Strip(m.View().Content) }

// TestEveryScreenFits: no line is wider than the terminal, no screen is higher, whatever its size, and no
// control character of a name is drawn.
func TestEveryScreenFits(t *testing.T) {
	for i, size := range [][2]int{{80, 24}, {200, 50}, {40, 10}, {20, 6}, {1, 1}, {80, 24}, {20, 6}} {
		m := start(t, &fake{snapshot: everything()}, Config{})
		if i > 4 {
			m.err = errors.New(strings.Repeat("the database does not answer ", 10))
		}
		m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for i := range screens {
			typed(t, m, fmt.Sprint(i+1))
			text := screenText(m)
			lines := strings.Split(text, "\n")
			if len(lines) > size[1] {
				t.Errorf("%v %s: %d lines", size, screens[i].title, len(lines))
			}
			for _, l := range lines {
				if w := ansi.StringWidth(l); w > size[0] {
					t.Errorf("%v %s: %d columns: %s", size, screens[i].title, w, l)
				}
			}
			if strings.ContainsAny(text, "\x1b\u202e\x07") {
				t.Errorf("%v %s: a control character is drawn: %q", size, screens[i].title, text)
			}
			if size[0] >= 80 && screens[i].empty != "" && strings.Contains(text, screens[i].empty) {
				t.Errorf("%v %s is empty", size, screens[i].title)
			}
		}
	}
}

// TestEmptyScreens say so.
func TestEmptyScreens(t *testing.T) {
	m := start(t, &fake{}, Config{})
	for i, s := range screens {
		if typed(t, m, fmt.Sprint(i+1)); s.empty != "" && i != doctorScreen && !strings.Contains(screenText(m), s.empty) {
			t.Errorf("%s:\n%s", s.title, screenText(m))
		}
	}
}

// TestActions need what they say, and act on the grant under the cursor.
func TestActions(t *testing.T) {
	f := &fake{snapshot: everything()}
	m := start(t, f, Config{})
	typed(t, m, "K", "n", "o", "enter")
	typed(t, m, "K", "esc")
	typed(t, m, "r", "esc")
	if len(f.acts) > 0 {
		t.Fatalf("%q", f.acts)
	}
	keys := func(text string) []string { return strings.Split(text, "") }
	typed(t, m, append(append([]string{"K"}, keys("account:17")...), "enter", "enter")...) // without a reason
	typed(t, m, "r", "space", "enter")
	if len(f.acts) > 0 || !strings.Contains(screenText(m), "nothing is done: give a reason") {
		t.Fatalf("%q\n%s", f.acts, screenText(m))
	}
	typed(t, m, append(append([]string{"K"}, keys("account:17")...), "enter", "o", "l", "d", "enter")...)
	typed(t, m, "r", "w", "h", "x", "backspace", "y", "enter")
	if !strings.Contains(screenText(m), "asked to release: grant 7 of account:17") {
		t.Errorf("%s", screenText(m))
	}
	typed(t, m, "down", "K")
	m.Update(tea.PasteMsg{Content: `"\x1b[2J\u202e日本\n\a"`})
	typed(t, m, "enter", "x", "enter", "o") // no key is selected here
	if got := fmt.Sprint(f.acts); got != fmt.Sprintf(`[revoke "account:17" 7 old (by ann@ops) ask "account:17" 7 why (by ann@ops) revoke %q 8 x (by ann@ops)]`, hostile) {
		t.Errorf("%s", got)
	}
	f.err = errors.New("no right")
	typed(t, m, "r", "x", "enter")
	if !strings.Contains(screenText(m), "no right") {
		t.Errorf("%s", screenText(m))
	}
	for _, note := range []string{"read-only", "a standby changes nothing"} {
		f = &fake{snapshot: everything()}
		f.snapshot.Server.Standby = note != "read-only"
		m := start(t, f, Config{ReadOnly: note == "read-only"})
		typed(t, m, "K", "enter", "r", "enter", "8", "o")
		if len(f.acts) > 0 || !strings.Contains(screenText(m), note) {
			t.Errorf("%q\n%s", f.acts, screenText(m))
		}
	}
}

// TestOutcome: a key is resolved after it was typed, with an answer and a reason, also from the first screen.
func TestOutcome(t *testing.T) {
	for _, screen := range []string{"once", "now"} {
		f := &fake{snapshot: everything()}
		m := start(t, f, Config{Screen: screen})
		screenText(m)
		for screens[m.screen].rows(m.view)[m.cursor].once == "" {
			typed(t, m, "down")
			screenText(m)
		}
		key := func() { m.Update(tea.PasteMsg{Content: `"\x1b[2J\u202e日本\n\a"`}) }
		typed(t, m, "o", "x", "enter")
		for _, answers := range [][]string{{"n", "enter"}, {"y", "e", "s", "enter", "enter"}, {"esc"}} {
			typed(t, m, "o")
			key()
			typed(t, m, append([]string{"enter"}, answers...)...)
		}
		if len(f.acts) > 0 {
			t.Fatalf("%q", f.acts)
		}
		for _, answer := range []string{"yes", "no"} {
			typed(t, m, "o")
			key()
			typed(t, m, append(append([]string{"enter"}, strings.Split(answer, "")...), "enter", "b", "y", " ", "m", "e", "enter")...)
		}
		want := fmt.Sprintf("[resolve %q 1 true by me (by ann@ops) resolve %q 1 false by me (by ann@ops)]", hostile, hostile)
		if got := fmt.Sprint(f.acts); got != want || !strings.Contains(screenText(m), "resolved, it did not happen: key") {
			t.Errorf("%s: %s, want %s\n%s", screen, got, want, screenText(m))
		}
	}
}

// TestNow: what needs attention is in whole words at 80 columns, with its cure and the last actions, and nothing
// to do shows as that.
func TestNow(t *testing.T) {
	s := everything()
	s.Locks[0].Waiters[0].Waited, s.Locks[0].Labels = time.Hour, nil // with its payload it is that of an election
	s.Actions = []inspect.Action{{At: began.Add(-time.Minute), Role: "ops", Application: hostile, What: "revoked", Name: hostile, Token: 3, Reason: hostile}}
	m := start(t, &fake{snapshot: s}, Config{Screen: "now"})
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 60})
	screen := screenText(m)
	words := strings.Join(strings.Fields(screen), " ")
	for _, want := range []string{
		"fail server: ", "the outcome is unknown", "--did-not-happen", "is late by 1h0m", "warn account:17, a: held for 1m0s, waiters: 1, up to 1h0m",
		`pglock release account:17 --force --reason "…"`, "done 1m0s ago: revoked", "by ops as",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("%q is missing in\n%s", want, screen)
		}
	}
	if lines := strings.Split(screen, "\n"); strings.Contains(strings.Join(lines[3:len(lines)-1], "\n")+lines[2], "…\n") || !strings.Contains(lines[2], "9doctor") {
		t.Errorf("a line is cut:\n%s", screen)
	}
	m.view = view{}
	m.Doctor = func(context.Context) []doctor.Result { return []doctor.Result{{Level: doctor.Warn}} }
	m.Update(answer{number: m.reads, snapshot: inspect.Snapshot{At: began}})
	if text := screenText(m); !strings.Contains(text, "so far: the checks of doctor run") {
		t.Errorf("%s", text)
	}
	typed(t, m, "1")
	if text := screenText(m); !strings.Contains(text, "ok    Nothing needs attention.") && !strings.Contains(text, "ok   Nothing needs attention.") {
		t.Errorf("%s", text)
	}
}

// TestReads: what is asked for, when, and which answers count.
func TestReads(t *testing.T) {
	f := &fake{snapshot: everything()}
	m := start(t, f, Config{})
	typed(t, m, "/", "a", "*", "enter", "s")
	typed(t, m, "/", "backspace", "backspace", "@", "x", "enter")
	typed(t, m, "esc")
	var got []string
	for _, q := range f.queries {
		got = append(got, fmt.Sprint(q.Pattern, " ", q.Holder, " ", q.Order, " ", q.Held, " ", q.Limit))
	}
	want := []string{"  waiters true 1000", "a*  waiters true 1000", "a*  held true 1000", " x held true 1000", "  held true 1000"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q, want %q", got, want)
	}
	n := len(f.queries)
	typed(t, m, "space")
	_, cmd := m.Update(tick(m.reads))
	if do(t, m, cmd); len(f.queries) != n || !strings.Contains(screenText(m), "paused") {
		t.Errorf("it reads while it is paused:\n%s", screenText(m))
	}
	if typed(t, m, "space"); len(f.queries) != n+1 {
		t.Error("it does not go on")
	}
	m.Update(answer{number: m.reads - 1, err: errors.New("late")})
	if m.err != nil {
		t.Error("the answer to an older read counts")
	}
}

// TestOutage: the last state stays, faint and with its time, and the next read comes soon, however
// long the one took that failed, or that outlasted the outage.
func TestOutage(t *testing.T) {
	s := everything()
	m := start(t, &fake{snapshot: s}, Config{})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 24})
	_, cmd := m.Update(tick(m.reads)) // the first read has connected too, and does not count
	do(t, m, cmd)
	m.Update(answer{number: m.reads, snapshot: s, took: time.Millisecond})
	long := strings.Repeat("database unavailable: the server at db1.example does not answer ", 3)
	m.Update(answer{number: m.reads, err: errors.New(long), took: 5 * time.Second})
	text := screenText(m)
	for _, want := range []string{"no answer since 12:00:00 UTC", "account:17", "q quit"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if all := strings.Join(strings.Fields(text), " "); !strings.Contains(all, strings.TrimSpace(long)) || strings.Contains(all, "UTC, every") {
		t.Errorf("the error is cut, or the screen pretends to be up to date:\n%s", text)
	}
	for _, line := range strings.Split(m.View().Content, "\n") {
		if strings.Contains(line, "sem ") && !strings.HasPrefix(line, faint.Render("sem")[:3]) {
			t.Errorf("old, and not faint: %q", line)
		}
	}
	if m.rest > 5*time.Second {
		t.Errorf("the next read comes after %v", m.rest)
	}
	for range 3 { // the first one outlasted the outage
		for _, took := range []time.Duration{4 * time.Second, time.Millisecond} {
			m.Update(answer{number: m.reads, snapshot: s, took: took})
			if m.rest != m.Every || strings.Contains(screenText(m), "no answer") {
				t.Errorf("the next read comes after %v:\n%s", m.rest, screenText(m))
			}
		}
	}
}

// TestRates come from two reads that follow one another.
func TestRates(t *testing.T) {
	s := everything()
	f := &fake{snapshot: s}
	m := start(t, f, Config{})
	s.At, s.Locks = s.At.Add(2*time.Second), append([]inspect.Lock(nil), s.Locks...)
	s.Locks[0].Version += 5
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 50})
	seesRate := func(want string, locks []inspect.Lock) {
		t.Helper()
		s := s
		s.Locks = locks
		m.Update(answer{number: m.reads, snapshot: s})
		if text := screenText(m); !strings.Contains(text, want+" changes/s") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	seesRate("2.5", s.Locks)
	free, held := s.Locks[1:], append([]inspect.Lock(nil), s.Locks...)
	s.At = s.At.Add(2 * time.Second)
	seesRate("0.0", free)
	s.At = s.At.Add(2 * time.Second)
	held[0].Version += 20
	seesRate("0.0", held)
}

// TestOverdueGrants: a holder that does not renew is seen, also by a screen that was opened after
// its end.
func TestOverdueGrants(t *testing.T) {
	s := everything()
	s.Locks = append([]inspect.Lock(nil), s.Locks...)
	s.Locks[0].Remaining = 6 * time.Second // of 30
	m := start(t, &fake{snapshot: s}, Config{})
	if text := screenText(m); strings.Contains(text, "not renewed") || strings.Contains(text, "█") {
		t.Errorf("a screen that was just opened knows the TTL:\n%s", text)
	}
	s.At, s.Locks[0].Remaining = s.At.Add(4*time.Second), 2*time.Second
	m.Update(answer{number: m.reads, snapshot: s})
	if text := screenText(m); !strings.Contains(text, "2s, not renewed for 4s") {
		t.Errorf("%s", text)
	}
}

// TestCycles: only what is certain is called a cycle.
func TestCycles(t *testing.T) {
	s := everything()
	s.Locks = []inspect.Lock{
		{Name: "p1", Holder: "p", Remaining: 1, Token: 1, Waiters: []inspect.Waiter{{Holder: "o"}}},
		{Name: "p2", Holder: "o", Remaining: 1, Token: 2, Waiters: []inspect.Waiter{{Holder: "p"}}},
	}
	m := start(t, &fake{snapshot: s}, Config{Screen: "blocking"})
	if text := screenText(m); !strings.Contains(text, "p1 again: perhaps a cycle") {
		t.Errorf("%s", text)
	}
	s.Nested = []inspect.NestedWait{{Holder: "o", Names: []string{"p1"}, Holds: []fencing.Token{2}}, {Holder: "p", Names: []string{"p2"}, Holds: []fencing.Token{1}}}
	m.Update(answer{number: m.reads, snapshot: s})
	if text := screenText(m); !strings.Contains(text, "p1 again: a cycle") {
		t.Errorf("%s", text)
	}
}

// TestWhatFits: a line ends with a whole part, a filter without matches says so, and a long table
// says where the cursor is.
func TestWhatFits(t *testing.T) {
	s := everything()
	for i := range 300 {
		s.Locks = append(s.Locks, inspect.Lock{Name: fmt.Sprint("n", i), Holder: "h", Remaining: time.Second, Token: fencing.Token(100 + i)})
	}
	m := start(t, &fake{snapshot: s}, Config{})
	lines := strings.Split(screenText(m), "\n")
	if first, last := lines[1], lines[len(lines)-1]; strings.Contains(first+last, "…") || !strings.Contains(first, "connections 0/0") || !strings.Contains(last, "row 1 of 304") {
		t.Errorf("%q, %q", first, last)
	}
	s.Locks, s.Advisory = nil, nil
	m.Update(answer{number: m.reads, snapshot: s})
	m.Filter = "zzz"
	if text := screenText(m); strings.Contains(text, "No lock is held") || !strings.Contains(text, "matches the filter zzz") {
		t.Errorf("%s", text)
	}
}

// TestAdvisoryLocks are the last rows of those that are held, unless there is a filter, and nobody can revoke them.
func TestAdvisoryLocks(t *testing.T) {
	s := everything()
	s.Advisory = []advisory.Usage{
		{Key: advisory.KeyFromInt64(1), Granted: true, ApplicationName: "app", PID: 7}, {Key: advisory.KeyFromInt64(1), Shared: true, ApplicationName: "job", PID: 8, WaitsFor: []uint32{7}},
	}
	f := &fake{snapshot: s}
	m := start(t, f, Config{})
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 50})
	for _, want := range []string{"advisory          app 7", "advisory, shared  job 8", "waits for [7]"} {
		if text := screenText(m); !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	typed(t, m, "down", "down", "down", "K")
	if text := screenText(m); !strings.Contains(text, "no grant is selected") {
		t.Errorf("%s", text)
	}
	if typed(t, m, "enter"); !strings.Contains(screenText(m), "kind          advisory") {
		t.Errorf("%s", screenText(m))
	}
	typed(t, m, "q", "/", "a", "enter")
	if text := screenText(m); strings.Contains(text, "advisory") || !strings.Contains(text, "account:17") {
		t.Errorf("%s", text)
	}
}

// TestTheCursorStaysOnItsRow when rows come and go.
func TestTheCursorStaysOnItsRow(t *testing.T) {
	s := everything()
	m := start(t, &fake{snapshot: s}, Config{})
	screenText(m)
	typed(t, m, "down", "down")
	s.Locks = s.Locks[1:]
	m.Update(answer{number: m.reads, snapshot: s})
	screenText(m)
	if m.cursor != 1 || screens[m.screen].rows(m.view)[m.cursor].lock != "sem" {
		t.Errorf("the cursor is at %d", m.cursor)
	}
}
