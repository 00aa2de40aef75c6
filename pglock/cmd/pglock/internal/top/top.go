// Package top is the full screen of `pglock top`: what is held, who waits, and what blocks, drawn
// again and again from Client.Snapshot.
package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// Client is what the screen needs of a *pglock.Client.
type Client interface {
	Snapshot(ctx context.Context, q inspect.Query) (inspect.Snapshot, error)
	Get(ctx context.Context, name string) (inspect.Lock, error)
	RequestRelease(ctx context.Context, name string, token fencing.Token, reason string) error
	Revoke(ctx context.Context, name string, token fencing.Token, reason string) error
	Schema() string
}

// Config configures Run: what it draws, and how often.
type Config struct {
	Client   Client
	Doctor   func(ctx context.Context) []doctor.Result
	Resolve  func(ctx context.Context, key string, token fencing.Token, happened bool, reason string) error // as once.Resolve
	Operator string                                                                                         // who acts
	Show     func(out io.Writer, l inspect.Lock, s inspect.Snapshot) error                                  // everything about a lock and its sessions, for its detail
	Export   func(out io.Writer, l inspect.Lock, indented bool) error                                       // as JSON
	Help     string                                                                                         // of the keys
	Every    time.Duration                                                                                  // between two reads
	ReadOnly bool
	Filter   string // as after the key /
	Screen   string // the first one
}

// Screens are the names of the screens.
func Screens() (names []string) {
	for _, s := range screens {
		names = append(names, s.title)
	}
	return names
}

const (
	mostRows              = 1000 // that a screen reads
	leastEvery, mostEvery = 250 * time.Millisecond, time.Minute
	far                   = 1 << 30 // beyond all rows
)

// snapshot reads what the filter selects: a part or a pattern of names, or @ and a holder.
func (c Config) snapshot(ctx context.Context, order inspect.Order) (inspect.Snapshot, error) {
	q := inspect.Query{Order: order, Limit: mostRows, Filter: inspect.Filter{Held: true}}
	switch holder, ok := strings.CutPrefix(c.Filter, "@"); {
	case ok:
		q.Holder = holder
	case strings.ContainsAny(c.Filter, "*?"):
		q.Pattern = c.Filter
	case c.Filter != "":
		q.Pattern = "*" + c.Filter + "*"
	}
	s, err := c.Client.Snapshot(ctx, q)
	if c.Filter != "" {
		s.Advisory = nil
	}
	return s, err
}

// Once prints the screens that have rows, or the one that is named, as plain text.
func Once(ctx context.Context, cfg Config, out io.Writer) error {
	s, err := cfg.snapshot(ctx, inspect.ByWaiters)
	if err != nil {
		return err
	}
	v := view{Snapshot: s} // without rates, which need an earlier read
	standby := text.Standby(s.Server)
	var text strings.Builder
	if standby != "" && cfg.Screen == "" {
		fmt.Fprintf(&text, "From %s\n\n", standby)
	}
	for i, screen := range screens {
		if cfg.Screen != "" && cfg.Screen != screen.title {
			continue
		}
		if v.checks == nil && (i == nowScreen || i == doctorScreen) {
			v.checks = cfg.Doctor(ctx)
		}
		rows := screen.rows(v)
		if cfg.Screen == "" && len(rows) == 0 {
			continue
		}
		if cfg.Screen == "" {
			fmt.Fprintf(&text, "%s%s\n", strings.ToUpper(screen.title[:1]), screen.title[1:])
		}
		add := func(line string) { fmt.Fprintln(&text, strings.TrimRight(ansi.Strip(line), " ")) }
		titles, line := layout(screen.columns, rows, far)
		add(titles)
		for _, r := range rows {
			add(line(r.cells))
		}
		if more := s.Server.Started - len(s.Once); screen.title == "once" && more > 0 {
			fmt.Fprintf(&text, "and %d more\n", more)
		}
		if cfg.Screen == "" {
			fmt.Fprintln(&text)
		}
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// Run draws until the user quits or ctx ends.
func Run(ctx context.Context, cfg Config, options ...tea.ProgramOption) error {
	_, err := tea.NewProgram(newModel(ctx, cfg), append(options, tea.WithContext(ctx), tea.WithoutSignalHandler())...).Run()
	return err
}

type prompt struct {
	question string
	style    lipgloss.Style
	input    string
	enter    func(input string) tea.Cmd
}

type model struct {
	Config
	ctx           context.Context //nolint:containedctx // of the program
	width, height int

	view     view
	err      error
	pace     display.Pace
	rest     time.Duration // until the next read
	renewals display.Renewals
	queues   display.Queues
	reads    int // that were begun: the answer to an older one is dropped

	screen, cursor, first int
	rows                  int    // of the table
	key                   string // of the row under the cursor
	order                 int    // one of orders
	paused                bool

	prompt *prompt // nil without one
	detail string  // that is shown instead of the table
	note   string  // the result of the last action
}

func newModel(ctx context.Context, cfg Config) *model {
	first := slices.Index(Screens(), cfg.Screen)
	return &model{Config: cfg, ctx: ctx, width: 80, height: 24, screen: max(first, 0), renewals: display.Renewals{}}
}

// The messages of commands that have ended.
type (
	tick   int // the number of the read that is due
	answer struct {
		number   int
		snapshot inspect.Snapshot
		took     time.Duration
		err      error
	}
	checked []doctor.Result
	shown   string
	acted   string
)

func (m *model) Init() tea.Cmd { return tea.Batch(m.read(), m.check()) }

func (m *model) read() tea.Cmd {
	m.reads++
	n, cfg, order := m.reads, m.Config, orders[m.order].Order
	return func() tea.Msg {
		began := time.Now()
		s, err := cfg.snapshot(m.ctx, order)
		return answer{n, s, time.Since(began), err}
	}
}

func (m *model) check() tea.Cmd {
	if m.screen != doctorScreen && m.screen != nowScreen {
		return nil
	}
	m.view.checks = nil
	return func() tea.Msg { return checked(m.Doctor(m.ctx)) }
}

func (m *model) take(s inspect.Snapshot) {
	old, versions := m.view, map[string]int64{}
	for _, l := range old.Locks {
		versions[l.Name] = l.Version
	}
	m.view = view{Snapshot: s, checks: old.checks, overdue: m.renewals.Overdue(s.At, s.Locks...), grown: m.queues.Grown(s.Locks), rates: map[string]float64{}}
	for _, l := range s.Locks {
		if version, ok := versions[l.Name]; ok && s.At.After(old.At) {
			m.view.rates[l.Name] = max(0, float64(l.Version-version)/s.At.Sub(old.At).Seconds())
		}
	}
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		if int(msg) == m.reads && !m.paused {
			return m, m.read()
		}
	case answer:
		if msg.number != m.reads {
			return m, nil
		}
		n := msg.number
		if n == 1 {
			msg.took = 0 // it has connected too
		}
		if m.err = msg.err; msg.err == nil {
			m.take(msg.snapshot)
		}
		m.rest = max(m.Every, m.pace.Rest(msg.took, msg.err))
		return m, tea.Tick(m.rest, func(time.Time) tea.Msg { return tick(n) })
	case checked:
		m.view.checks = msg
	case shown:
		m.detail, m.first = string(msg), 0
	case acted:
		m.note = string(msg)
		return m, m.read()
	case tea.PasteMsg:
		if m.prompt != nil {
			m.prompt.input += text.OneLine(msg.Content)
		}
	case tea.KeyPressMsg:
		m.note = ""
		return m, m.press(msg)
	}
	return m, nil
}

func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	step := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -m.room(), "pgdown": m.room(), "space": m.room(),
		"home": -far, "g": -far, "end": far, "G": far,
	}[key]
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case m.prompt != nil:
		return m.edit(key, msg.Text)
	case m.detail == "":
		return m.browse(key, step)
	case slices.Contains([]string{"q", "esc", "enter", "h", "?"}, key):
		m.detail, m.first = "", 0
	default:
		m.first += step // View ends at its last line
	}
	return nil
}

func (m *model) edit(key, typed string) tea.Cmd {
	p := m.prompt
	switch key {
	case "esc":
		m.prompt = nil
	case "enter":
		m.prompt = nil
		return p.enter(p.input)
	case "backspace":
		if runes := []rune(p.input); len(runes) > 0 {
			p.input = string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		p.input = ""
	default:
		p.input += typed
	}
	return nil
}

// reason asks why something is done, and does it with the reason and the operator's name.
func (m *model) reason(question, done, about string, style lipgloss.Style, do func(reason string) error) {
	m.prompt = &prompt{question: question, style: style, enter: func(input string) tea.Cmd {
		if strings.TrimSpace(input) == "" {
			m.note = "nothing is done: give a reason"
			return nil
		}
		return func() tea.Msg {
			if err := do(display.By(input, m.Operator)); err != nil {
				return acted("not " + done + ": " + text.OneLine(err.Error()))
			}
			return acted(done + ": " + about)
		}
	}}
}

// confirm asks for a name to be typed.
func (m *model) confirm(question, name string, then func()) {
	m.prompt = &prompt{question: question, style: bad, enter: func(input string) tea.Cmd {
		if input == name || input == text.Plain(name) { // control characters can't be typed
			then()
		} else {
			m.note = "nothing is done: that is another name"
		}
		return nil
	}}
}

// orders are what the key s goes through.
var orders = []struct {
	inspect.Order
	text string
}{
	{inspect.ByWaiters, "by waiters"}, {inspect.ByHeld, "by time held"}, {inspect.ByRemaining, "by time left"}, {inspect.ByName, "by name"},
}

// browse reacts to a key that moves the cursor by step, or does something.
func (m *model) browse(key string, step int) tea.Cmd {
	rows := screens[m.screen].rows(m.view)
	current := row{}
	if m.cursor < len(rows) {
		current = rows[m.cursor]
	}
	switch key {
	case "q":
		return tea.Quit
	case "esc":
		m.Filter = ""
		return m.read()
	case "tab", "right":
		return m.open((m.screen + 1) % len(screens))
	case "shift+tab", "left":
		return m.open((m.screen + len(screens) - 1) % len(screens))
	case "space":
		if m.paused = !m.paused; !m.paused {
			return m.read()
		}
	case "+", "=":
		m.Every = min(m.Every*2, mostEvery)
	case "-":
		m.Every = max(m.Every/2, leastEvery)
	case "/":
		m.prompt = &prompt{question: "filter names (part, pattern with * and ?, or @HOLDER): ", input: m.Filter, enter: func(input string) tea.Cmd {
			m.Filter = input
			return m.read()
		}}
	case "s":
		m.order = (m.order + 1) % len(orders)
		return m.read()
	case "h", "?":
		m.detail, m.first = m.Help, 0
	case "e":
		return m.export()
	case "enter":
		return m.describe(current)
	case "y":
		fence, err := fencing.Fence{Schema: m.Client.Schema(), Name: current.lock, Token: current.token}.MarshalText()
		if err != nil {
			m.note = "no grant is selected"
			return nil
		}
		m.note = "copied the fence " + text.OneLine(string(fence))
		return tea.SetClipboard(string(fence))
	case "r", "K":
		m.askToEnd(current, key == "K")
	case "o":
		m.askOutcome(current)
	default:
		m.move(rows, m.cursor+step)
		if n := int(key[0] - '1'); len(key) == 1 && n >= 0 && n < len(screens) {
			return m.open(n)
		}
	}
	return nil
}

// refusal says why the keys that change something do nothing, if so.
func (m *model) refusal() string {
	switch {
	case m.ReadOnly:
		return "read-only"
	case m.view.Server.Standby:
		return "a standby changes nothing: connect to the primary"
	}
	return ""
}

// askToEnd asks for what it takes to request the release of a row's grant, or to revoke it.
func (m *model) askToEnd(r row, revoke bool) {
	about := fmt.Sprintf("grant %d of %s", r.token, text.Plain(r.lock))
	switch {
	case m.refusal() != "":
		m.note = m.refusal()
	case r.token == 0 || r.lock == "":
		m.note = "no grant is selected"
	case revoke:
		m.confirm(fmt.Sprintf("revoke grant %d of %s, type its name: ", r.token, text.Plain(r.lock)), r.lock, func() {
			m.reason("why is it revoked: ", "revoked", about, bad, func(why string) error { return m.Client.Revoke(m.ctx, r.lock, r.token, why) })
		})
	default:
		question := fmt.Sprintf("ask %s to release grant %d, reason: ", text.Plain(r.lock), r.token)
		m.reason(question, "asked to release", about, lipgloss.Style{}, func(why string) error { return m.Client.RequestRelease(m.ctx, r.lock, r.token, why) })
	}
}

// askOutcome asks for what it takes to resolve the key of a row.
func (m *model) askOutcome(r row) {
	switch {
	case m.refusal() != "":
		m.note = m.refusal()
		return
	case r.once == "":
		m.note = "no key is selected"
		return
	}
	m.confirm("type the key "+text.Plain(r.once)+": ", r.once, func() {
		m.prompt = &prompt{question: "did its effect happen? yes or no: ", style: bad, enter: func(input string) tea.Cmd {
			happened := input == "yes"
			if !happened && input != "no" {
				m.note = "nothing is done: type yes or no"
				return nil
			}
			done := map[bool]string{true: "resolved, it happened", false: "resolved, it did not happen"}[happened]
			m.reason("how do you know: ", done, "key "+text.Plain(r.once), bad, func(why string) error { return m.Resolve(m.ctx, r.once, r.token, happened, why) })
			return nil
		}}
	})
}

func (m *model) open(n int) tea.Cmd {
	m.screen, m.cursor, m.first, m.key = n, 0, 0, ""
	return m.check()
}

func (m *model) move(rows []row, to int) {
	m.cursor = max(0, min(to, len(rows)-1))
	if len(rows) > 0 {
		m.key = rows[m.cursor].key
	}
}

func (m *model) describe(r row) tea.Cmd {
	if r.key == "" {
		return nil
	}
	if r.lock == "" {
		m.first = 0
		for i, c := range screens[m.screen].columns {
			m.detail += fmt.Sprintf("%-12s  %s\n", strings.ToLower(c.title), r.cells[i].text)
		}
		return nil
	}
	sessions := inspect.Snapshot{At: m.view.At, Guards: m.view.Guards, Sessions: m.view.Sessions, Actions: m.view.Actions}
	return func() tea.Msg {
		var detail strings.Builder
		l, err := m.Client.Get(m.ctx, r.lock)
		if err == nil {
			err = m.Show(&detail, l, sessions)
		}
		if err != nil {
			return acted(text.OneLine(err.Error()))
		}
		return shown(detail.String())
	}
}

func (m *model) export() tea.Cmd {
	s := m.view.Snapshot
	return func() tea.Msg {
		name := "pglock-" + s.At.UTC().Format("20060102T150405.000Z") + ".json"
		var data bytes.Buffer
		var err error
		for _, l := range s.Locks {
			err = errors.Join(err, m.Export(&data, l, false))
		}
		if err == nil {
			err = os.WriteFile(name, data.Bytes(), 0o600)
		}
		if err != nil {
			return acted("not exported: " + text.OneLine(err.Error()))
		}
		return acted(fmt.Sprintf("exported %d locks to %s", len(s.Locks), name))
	}
}
