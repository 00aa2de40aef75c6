// Package top is the full screen of `pglock top`: what is held, who waits, and what blocks, drawn again and
// again from Client.Snapshot.
package top

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// Client is what the screen needs of a *pglock.Client.
type Client interface {
	Snapshot(ctx context.Context, q inspect.Query) (inspect.Snapshot, error)
	Get(ctx context.Context, name string) (inspect.Lock, error)
	RequestRelease(ctx context.Context, name string, token fencing.Token, reason string) error
	Revoke(ctx context.Context, name string, token fencing.Token, reason string) error
	Schema() string
}

// Config says what to draw.
type Config struct {
	Client   Client
	Doctor   func(ctx context.Context) []doctor.Result
	Show     func(l inspect.Lock) string                   // everything about a lock, for its detail
	Export   func(out io.Writer, all []inspect.Lock) error // as JSON
	Every    time.Duration                                 // between two reads
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
	mostRows = 1000 // that a screen reads
	// busyShare is how much longer than a read the pause after it is, so that the server spends 1 % of its
	// time with it at most, however many locks there are.
	busyShare             = 100
	leastEvery, mostEvery = 250 * time.Millisecond, time.Minute
)

// query returns what to read for a filter: a part of a name, a pattern with * and ?, or @ and a holder.
func query(filter string, order inspect.Order) inspect.Query {
	q := inspect.Query{Order: order, Limit: mostRows, Filter: inspect.Filter{Held: true}}
	switch holder, ok := strings.CutPrefix(filter, "@"); {
	case ok:
		q.Holder = holder
	case strings.ContainsAny(filter, "*?"):
		q.Pattern = filter
	case filter != "":
		q.Pattern = "*" + filter + "*"
	}
	return q
}

// Once prints the screens that have rows, or the one that is named, as plain text.
func Once(ctx context.Context, cfg Config, out io.Writer) error {
	s, err := cfg.Client.Snapshot(ctx, query(cfg.Filter, inspect.ByWaiters))
	if err != nil {
		return err
	}
	m := newModel(ctx, cfg)
	m.view.Snapshot, m.view.shares = s, nil // without bars: they need an earlier read
	for i, screen := range screens {
		if i == doctorScreen && (cfg.Screen == screen.title || cfg.Screen == "") {
			m.view.checks = cfg.Doctor(ctx)
		}
		rows := screen.rows(m.view)
		if cfg.Screen != "" && cfg.Screen != screen.title || cfg.Screen == "" && len(rows) == 0 {
			continue
		}
		if cfg.Screen == "" {
			fmt.Fprintf(out, "%s\n", strings.ToUpper(screen.title[:1])+screen.title[1:])
		}
		widths := layout(screen.columns, rows, 1<<20)
		lines := [][]cell{titles(screen.columns)}
		for _, r := range rows {
			lines = append(lines, r.cells)
		}
		for _, cells := range lines {
			if _, err := fmt.Fprintln(out, strings.TrimRight(line(screen.columns, widths, cells, true), " ")); err != nil {
				return err
			}
		}
		if cfg.Screen == "" {
			fmt.Fprintln(out)
		}
	}
	return nil
}

// Run draws until the user quits or ctx ends.
func Run(ctx context.Context, cfg Config, options ...tea.ProgramOption) error {
	_, err := tea.NewProgram(newModel(ctx, cfg), append(options, tea.WithContext(ctx), tea.WithoutSignalHandler())...).Run()
	return err
}

// mode is what the keys do.
type mode int

const (
	browsing mode = iota
	filtering
	asking     // for the reason of a request to release
	confirming // the name of a lock that is to be revoked
	reading    // a detail or the help
)

// model is the state of the screen.
type model struct {
	Config
	ctx           context.Context //nolint:containedctx // of the program
	width, height int

	view  view
	err   error
	took  time.Duration
	reads int // that were begun: the answer to an older one is dropped

	screen, cursor, first int
	key                   string // of the row under the cursor
	order                 inspect.Order
	paused                bool

	mode   mode
	input  string
	target row // of the action
	detail []string
	note   string // the result of the last action
}

func newModel(ctx context.Context, cfg Config) *model {
	m := &model{Config: cfg, ctx: ctx, width: 80, height: 24, order: inspect.ByWaiters}
	m.view.shares, m.view.rates = map[int64]float64{}, map[string]float64{}
	for i, s := range screens {
		if s.title == cfg.Screen {
			m.screen = i
		}
	}
	return m
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
	shown   []string
	acted   string
)

func (m *model) Init() tea.Cmd { return tea.Batch(m.read(), m.check()) }

// read begins to read a snapshot.
func (m *model) read() tea.Cmd {
	m.reads++
	n, q := m.reads, query(m.Filter, m.order)
	return func() tea.Msg {
		began := time.Now()
		s, err := m.Client.Snapshot(m.ctx, q)
		return answer{n, s, time.Since(began), err}
	}
}

// check runs the doctor if its screen is shown.
func (m *model) check() tea.Cmd {
	if m.screen != doctorScreen {
		return nil
	}
	m.view.checks = nil
	return func() tea.Msg { return checked(m.Doctor(m.ctx)) }
}

// take makes a snapshot the one that is drawn.
func (m *model) take(s inspect.Snapshot, took time.Duration) {
	old := m.view
	m.view = view{Snapshot: s, checks: old.checks, shares: map[int64]float64{}, rates: map[string]float64{}}
	m.took = took
	versions := map[string]int64{}
	for _, l := range old.Locks {
		versions[l.Name] = l.Version
	}
	longest := map[int64]time.Duration{}
	for _, l := range old.Locks {
		for _, g := range grants(l) {
			if share := old.shares[int64(g.Token)]; share > 0 {
				longest[int64(g.Token)] = time.Duration(float64(g.Remaining) / share)
			}
		}
	}
	for _, l := range s.Locks {
		if version, ok := versions[l.Name]; ok && s.At.After(old.At) {
			m.view.rates[l.Name] = float64(l.Version-version) / s.At.Sub(old.At).Seconds()
		}
		for _, g := range grants(l) {
			most := max(longest[int64(g.Token)], g.Remaining, time.Millisecond)
			m.view.shares[int64(g.Token)] = float64(max(g.Remaining, 0)) / float64(most)
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
			m.take(msg.snapshot, msg.took)
		}
		return m, tea.Tick(max(m.Every, busyShare*msg.took), func(time.Time) tea.Msg { return tick(n) })
	case checked:
		m.view.checks = msg
	case shown:
		m.mode, m.detail, m.first = reading, msg, 0
	case acted:
		m.note = string(msg)
		return m, m.read()
	case tea.PasteMsg:
		if m.mode != browsing && m.mode != reading {
			m.input += text.OneLine(msg.Content)
		}
	case tea.KeyPressMsg:
		m.note = ""
		return m, m.press(msg)
	}
	return m, nil
}

// press reacts to a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case m.mode == browsing:
		return m.browse(key)
	case m.mode == reading:
		return m.scroll(key)
	}
	switch key {
	case "esc":
		m.mode, m.input = browsing, ""
	case "enter":
		return m.enter()
	case "backspace":
		if runes := []rune(m.input); len(runes) > 0 {
			m.input = string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		m.input = ""
	default:
		m.input += msg.Text
	}
	return nil
}

// enter ends an input.
func (m *model) enter() tea.Cmd {
	mode, input, target := m.mode, m.input, m.target
	m.mode, m.input = browsing, ""
	switch mode {
	case filtering:
		m.Filter = input
		return m.read()
	case asking:
		return m.act("asked to release", func() error {
			return m.Client.RequestRelease(m.ctx, target.lock, fencing.Token(target.token), cmp.Or(input, "pglock top"))
		})
	case confirming:
		if input != target.lock && input != text.Plain(target.lock) { // nobody types a control character
			m.note = "not revoked: that is another name"
			return nil
		}
		return m.act("revoked", func() error {
			return m.Client.Revoke(m.ctx, target.lock, fencing.Token(target.token), "pglock top")
		})
	}
	return nil
}

// act runs an action on the target.
func (m *model) act(what string, do func() error) tea.Cmd {
	target := m.target
	return func() tea.Msg {
		if err := do(); err != nil {
			return acted("not " + what + ": " + text.OneLine(err.Error()))
		}
		return acted(fmt.Sprintf("%s: grant %d of %s", what, target.token, text.Plain(target.lock)))
	}
}

// orders are what the key s goes through.
var orders = []inspect.Order{inspect.ByWaiters, inspect.ByHeld, inspect.ByRemaining, inspect.ByName}

func (m *model) browse(key string) tea.Cmd {
	rows := screens[m.screen].rows(m.view)
	current := row{}
	if m.cursor < len(rows) {
		current = rows[m.cursor]
	}
	page := m.room()
	switch key {
	case "q":
		return tea.Quit
	case "esc":
		m.Filter = ""
		return m.read()
	case "up", "k":
		m.move(rows, m.cursor-1)
	case "down", "j":
		m.move(rows, m.cursor+1)
	case "pgup":
		m.move(rows, m.cursor-page)
	case "pgdown":
		m.move(rows, m.cursor+page)
	case "home", "g":
		m.move(rows, 0)
	case "end", "G":
		m.move(rows, len(rows)-1)
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
		m.mode, m.input = filtering, m.Filter
	case "s":
		for i, o := range orders {
			if o == m.order {
				m.order = orders[(i+1)%len(orders)]
				break
			}
		}
		return m.read()
	case "h", "?":
		m.mode, m.detail, m.first = reading, helpLines(), 0
	case "e":
		return m.export()
	case "enter":
		return m.describe(current)
	case "y":
		if current.token != 0 {
			fence, err := fencing.Fence{Schema: m.Client.Schema(), Name: current.lock, Token: fencing.Token(current.token)}.MarshalText()
			if err != nil {
				m.note = text.OneLine(err.Error())
				return nil
			}
			m.note = "copied the fence " + text.OneLine(string(fence))
			return tea.SetClipboard(string(fence))
		}
	case "r", "K":
		switch {
		case m.ReadOnly:
			m.note = "read-only"
		case current.token == 0 || current.lock == "":
			m.note = "no grant is selected"
		case key == "r":
			m.mode, m.target = asking, current
		default:
			m.mode, m.target = confirming, current
		}
	default:
		if n := int(key[0] - '1'); len(key) == 1 && n >= 0 && n < len(screens) {
			return m.open(n)
		}
	}
	return nil
}

// open shows a screen.
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

// scroll moves a detail. View ends at its last line.
func (m *model) scroll(key string) tea.Cmd {
	switch key {
	case "up", "k":
		m.first--
	case "down", "j":
		m.first++
	case "pgup":
		m.first -= m.room()
	case "pgdown", "space":
		m.first += m.room()
	case "q", "esc", "enter", "h", "?":
		m.mode, m.first = browsing, 0
	}
	return nil
}

// describe reads what there is about a row.
func (m *model) describe(r row) tea.Cmd {
	if r.key == "" {
		return nil
	}
	if r.lock == "" || m.Show == nil {
		m.mode, m.detail, m.first = reading, nil, 0
		for i, c := range screens[m.screen].columns {
			m.detail = append(m.detail, fmt.Sprintf("%-12s  %s", strings.ToLower(c.title), r.cells[i].text))
		}
		return nil
	}
	return func() tea.Msg {
		l, err := m.Client.Get(m.ctx, r.lock)
		if err != nil {
			return acted(text.OneLine(err.Error()))
		}
		return shown(strings.Split(strings.TrimRight(m.Show(l), "\n"), "\n"))
	}
}

// export writes the locks into a file of the working directory.
func (m *model) export() tea.Cmd {
	s := m.view.Snapshot
	return func() tea.Msg {
		name := "pglock-" + s.At.UTC().Format("20060102T150405.000Z") + ".json"
		var data bytes.Buffer
		err := m.Export(&data, s.Locks)
		if err == nil {
			err = os.WriteFile(name, data.Bytes(), 0o600)
		}
		if err != nil {
			return acted("not exported: " + text.OneLine(err.Error()))
		}
		return acted(fmt.Sprintf("exported %d locks to %s", len(s.Locks), name))
	}
}
