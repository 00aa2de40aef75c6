package top

import (
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

func (f *fake) Revoke(_ context.Context, name string, token fencing.Token, _ string) error {
	f.acts = append(f.acts, fmt.Sprintf("revoke %q %d", name, token))
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
		Schedules: []inspect.Schedule{{Job: hostile, Last: began.Add(-2 * time.Hour), Next: began.Add(-time.Hour)}},
		Advisory:  []advisory.Usage{{Key: advisory.KeyFromInt64(1), Granted: true, ApplicationName: hostile}},
	}
}

// start returns a model that has read the snapshot.
func start(t *testing.T, f *fake, cfg Config) *model {
	t.Helper()
	cfg.Client, cfg.Every = f, 2*time.Second
	cfg.Doctor = func(context.Context) []doctor.Result {
		return []doctor.Result{{Check: "server", Level: doctor.Fail, Found: hostile, Remedy: hostile}}
	}
	cfg.Show = func(out io.Writer, l inspect.Lock, _ ...advisory.Usage) error {
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
	for _, size := range [][2]int{{80, 24}, {200, 50}, {40, 10}, {20, 6}, {1, 1}} {
		m := start(t, &fake{snapshot: everything()}, Config{})
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
			if size[0] >= 80 && strings.Contains(text, screens[i].empty) {
				t.Errorf("%v %s is empty", size, screens[i].title)
			}
		}
	}
}

// TestEmptyScreens say so.
func TestEmptyScreens(t *testing.T) {
	m := start(t, &fake{}, Config{})
	for i, s := range screens {
		if typed(t, m, fmt.Sprint(i+1)); i != doctorScreen && !strings.Contains(screenText(m), s.empty) {
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
	typed(t, m, append(append([]string{"K"}, strings.Split("account:17", "")...), "enter")...)
	typed(t, m, "r", "w", "h", "x", "backspace", "y", "enter")
	if !strings.Contains(screenText(m), "asked to release: grant 7 of account:17") {
		t.Errorf("%s", screenText(m))
	}
	typed(t, m, "down", "K")
	m.Update(tea.PasteMsg{Content: `"\x1b[2J\u202e日本\n\a"`})
	typed(t, m, "enter")
	if got := fmt.Sprint(f.acts); got != fmt.Sprintf(`[revoke "account:17" 7 ask "account:17" 7 why revoke %q 8]`, hostile) {
		t.Errorf("%s", got)
	}
	f.err = errors.New("no right")
	typed(t, m, "r", "enter")
	if !strings.Contains(screenText(m), "no right") {
		t.Errorf("%s", screenText(m))
	}
	f = &fake{snapshot: everything()}
	readOnly := start(t, f, Config{ReadOnly: true})
	typed(t, readOnly, "K", "enter", "r", "enter")
	if len(f.acts) > 0 || !strings.Contains(screenText(readOnly), "read-only") {
		t.Errorf("%q\n%s", f.acts, screenText(readOnly))
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
	m.Update(answer{number: m.reads, err: errors.New("database unavailable")})
	if text := screenText(m); !strings.Contains(text, "database unavailable") || !strings.Contains(text, "account:17") {
		t.Errorf("the last state, and why it is old:\n%s", text)
	}
}

// TestRatesAndBars come from two reads.
func TestRatesAndBars(t *testing.T) {
	s := everything()
	f := &fake{snapshot: s}
	m := start(t, f, Config{})
	s.At, s.Locks = s.At.Add(2*time.Second), append([]inspect.Lock(nil), s.Locks...)
	s.Locks[0].Version += 5
	s.Locks[0].Remaining /= 4
	m.Update(answer{number: m.reads, snapshot: s})
	m.Update(tea.WindowSizeMsg{Width: 200, Height: 50})
	if text := screenText(m); !strings.Contains(text, "2.5 changes/s") || !strings.Contains(text, "██░░░░░░") {
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
	if m.cursor != 1 || screens[0].rows(m.view)[m.cursor].lock != "sem" {
		t.Errorf("the cursor is at %d", m.cursor)
	}
}
