package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

// room returns how many rows fit between the header with the titles and the keys.
func (m *model) room() int { return max(1, m.height-len(m.header())-2) }

func (m *model) View() tea.View {
	lines := m.header()
	if m.detail != "" {
		detail := strings.Split(ansi.Wrap(strings.TrimRight(m.detail, "\n"), m.width, ""), "\n")
		m.first = max(0, min(m.first, len(detail)-m.room()))
		lines = append(append(lines, ""), detail[m.first:min(len(detail), m.first+m.room())]...)
	} else {
		lines = append(lines, m.table()...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, m.height-1)], ansi.Truncate(m.footer(), m.width, "…"))
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen, v.WindowTitle = true, "pglock top"
	return v
}

func (m *model) header() []string {
	s := m.view.Server
	version, _, _ := strings.Cut(s.Version, " ") // without that of a package
	first := fmt.Sprintf("pglock top  %s, schema %s, PostgreSQL %s", text.Plain(s.Database), text.Plain(m.Client.Schema()), version)
	when := "reading"
	if !m.view.At.IsZero() {
		when = m.view.At.UTC().Format("15:04:05") + " UTC"
		switch {
		case m.err != nil:
			when = bad.Render("no answer since " + when)
		case m.rest > m.Every:
			when += ", every " + text.Short(m.rest) + " (slow reads)"
		default:
			when += ", every " + text.Short(m.Every)
		}
	}
	if m.paused {
		when += ", paused"
	}
	rate := 0.0
	for _, r := range m.view.rates {
		rate += r
	}
	second := ""
	if s.Standby {
		second = text.Standby(s) + "  "
	}
	second = fit(m.width, second+fmt.Sprintf("held %d  waiting %d  %.1f changes/s  oldest transaction %s  connections %d/%d  once %d  notify queue %.0f %%  listening %d  dead rows %d",
		s.Held, s.Waiting, rate, text.Short(s.OldestTransaction), s.Connections, s.MaxConnections, s.Started, 100*s.NotifyQueue, s.Listeners, s.DeadRows))
	style := faint
	if s.OldestTransaction > time.Minute || s.NotifyQueue > 0.5 || s.Full() || s.Standby {
		style = warning
	}
	state := []string{style.Render(second)}
	if m.err != nil {
		state = strings.Split(ansi.Wrap(text.OneLine(m.err.Error()), m.width, ""), "\n")
		state = state[:min(len(state), max(1, m.height/3))]
		for i, line := range state {
			state[i] = bad.Render(line)
		}
	}
	tabs, separator := make([]string, len(screens)), " "
	if m.width < 86 { // so that none is cut at 80
		separator = ""
	}
	for i, s := range screens {
		tabs[i] = fmt.Sprint(i+1, separator, s.title)
		if i == m.screen {
			tabs[i] = selected.Render(separator + tabs[i] + separator)
		}
	}
	lines := append([]string{spread(m.width, heading.Render(first), when)}, state...)
	return append(lines, ansi.Truncate(strings.Join(tabs, " "), m.width, "…"))
}

// fit returns as many of the parts of a text, which two blanks separate, as there is room for.
func fit(width int, text string) string {
	parts := strings.Split(text, "  ")
	for len(parts) > 1 && ansi.StringWidth(strings.Join(parts, "  ")) > width {
		parts = parts[:len(parts)-1]
	}
	return ansi.Truncate(strings.Join(parts, "  "), max(0, width), "…")
}

// spread returns two texts at both ends of a line, and cuts the first one where room is missing.
func spread(width int, left, right string) string {
	left = ansi.Truncate(left, max(0, width-ansi.StringWidth(right)-1), "…")
	return ansi.Truncate(left+lipgloss.PlaceHorizontal(width-ansi.StringWidth(left), lipgloss.Right, " "+right), width, "")
}

func (m *model) table() []string {
	screen := screens[m.screen]
	m.view.width = m.width
	rows := screen.rows(m.view)
	for i, r := range rows { // the cursor stays on its row
		if r.key == m.key {
			m.cursor = i
		}
	}
	m.move(rows, m.cursor)
	m.rows = len(rows)
	m.first = max(min(m.first, m.cursor, len(rows)-m.room()), m.cursor-m.room()+1, 0)
	titles, line := layout(screen.columns, rows, m.width)
	lines := []string{ansi.Truncate(titles, m.width, "")}
	if len(rows) == 0 {
		empty := screen.empty
		if m.Filter != "" {
			empty = "Nothing here matches the filter " + text.Plain(m.Filter) + ". Escape ends it."
		}
		return append(lines, "", ansi.Truncate(empty, m.width, "…"))
	}
	for i := m.first; i < min(len(rows), m.first+m.room()); i++ {
		text := ansi.Truncate(line(rows[i].cells), m.width, "")
		if i == m.cursor {
			text = selected.Width(m.width).Render(ansi.Strip(text))
		} else if m.err != nil { // the rows are old
			text = faint.Render(ansi.Strip(text))
		}
		lines = append(lines, text)
	}
	return lines
}

// footer returns the last line: an input, the result of an action, or the keys.
func (m *model) footer() string {
	switch {
	case m.prompt != nil:
		return m.prompt.style.Render(m.prompt.question + text.OneLine(m.prompt.input) + "█")
	case m.note != "":
		return heading.Render(m.note)
	case m.detail != "":
		return "up, down: scroll  q: back"
	}
	keys := "h help  q quit  / filter  s sort  enter detail  r ask  K revoke  o outcome  y fence  space pause  e export  + - refresh"
	if m.ReadOnly {
		keys = "read-only  " + strings.Replace(keys, "r ask  K revoke  o outcome  ", "", 1)
	}
	where := ""
	if n := m.view.Matching; n > len(m.view.Locks) {
		where = fmt.Sprintf("  %d of %d locks", len(m.view.Locks), n)
	}
	if m.rows > m.room() {
		where += fmt.Sprintf("  row %d of %d", m.cursor+1, m.rows)
	}
	if m.Filter != "" {
		where += "  filter " + text.Plain(m.Filter)
	}
	where = orders[m.order].text + where
	return spread(m.width, fit(m.width-ansi.StringWidth(where)-1, keys), where)
}

// The styles of texts, whose colors are those of the terminal's palette, because they suit its
// background.
var (
	good     = lipgloss.NewStyle().Foreground(lipgloss.Green)
	warning  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	bad      = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
	faint    = lipgloss.NewStyle().Faint(true)
	heading  = lipgloss.NewStyle().Bold(true)
	selected = lipgloss.NewStyle().Reverse(true)
)

// cell is a text without control characters, and how it looks.
type cell struct {
	text  string
	style lipgloss.Style
}

type row struct {
	cells []cell
	lock  string        // the name of the lock that it is about; empty if it is not about one
	token fencing.Token // of the grant or the attempt that it is about; 0 if it is not about one
	once  string        // the key of the attempt that it is about
	key   string        // what stays the same when the row is read again
}

// column is a column of a table. A narrow screen cuts the text of the wide ones, and then drops
// those with the highest drop first.
type column struct {
	title string
	align lipgloss.Position
	drop  int // 0: never dropped
	wide  bool
}

const (
	right     = lipgloss.Right
	leastWide = 16 // how narrow a wide column may become
)

// layout decides about the widths of the columns for these rows. It returns the first line of the
// table, and the function that draws another one.
func layout(columns []column, rows []row, width int) (titles string, line func(cells []cell) string) {
	widths, over := make([]int, len(columns)), -2-width
	var first []cell
	for i, c := range columns {
		first = append(first, cell{c.title, heading})
		widths[i] = ansi.StringWidth(c.title)
		for _, r := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(r.cells[i].text))
		}
		over += widths[i] + 2
	}
	for more := true; over > 0 && more; { // otherwise the line is cut
		widest, dropped := -1, -1
		for i, c := range columns {
			if c.wide && widths[i] > leastWide && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
			if c.drop > 0 && widths[i] > 0 && (dropped < 0 || c.drop > columns[dropped].drop) {
				dropped = i
			}
		}
		switch {
		case widest >= 0:
			cut := min(over, widths[widest]-leastWide)
			widths[widest] -= cut
			over -= cut
		case dropped >= 0:
			over -= widths[dropped] + 2
			widths[dropped] = 0
		default:
			more = false
		}
	}
	line = func(cells []cell) string {
		var parts []string
		for i, c := range cells {
			if widths[i] > 0 {
				style := c.style.Width(widths[i]).Align(columns[i].align)
				parts = append(parts, style.Render(ansi.Truncate(c.text, widths[i], "…")))
			}
		}
		return strings.Join(parts, "  ")
	}
	return line(first), line
}

func meter(share float64, width int) string {
	full := int(share*float64(width) + 0.5)
	full = min(max(full, 0), width)
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
