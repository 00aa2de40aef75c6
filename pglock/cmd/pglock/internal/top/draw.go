package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/pglock/internal/text"
)

// around is the number of lines around a table: two of the server, the names of the screens, the titles,
// and the keys.
const around = 5

// room returns how many rows fit.
func (m *model) room() int { return max(1, m.height-around) }

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

// header returns what is shown above each screen.
func (m *model) header() []string {
	s := m.view.Server
	version, _, _ := strings.Cut(s.Version, " ") // without that of a package
	first := fmt.Sprintf("pglock top  %s, schema %s, PostgreSQL %s", text.Plain(s.Database), text.Plain(m.Client.Schema()), version)
	when := "reading"
	if !m.view.At.IsZero() {
		every := max(m.Every, busyShare*m.took)
		when = m.view.At.UTC().Format("15:04:05") + " UTC, every " + text.Short(every)
		if every > m.Every {
			when += " as a read takes long"
		}
	}
	if m.paused {
		when += ", paused"
	}
	rate := 0.0
	for _, r := range m.view.rates {
		rate += r
	}
	second := fmt.Sprintf("held %d  waiting %d  once %d  %.1f changes/s  oldest transaction %s  notify queue %.0f %%  connections %d/%d  listening %d  dead rows %d",
		s.Held, s.Waiting, s.Started, rate, text.Short(s.OldestTransaction), 100*s.NotifyQueue, s.Connections, s.MaxConnections, s.Listeners, s.DeadRows)
	style := faint
	if s.OldestTransaction > time.Minute || s.NotifyQueue > 0.5 {
		style = warning
	}
	if m.err != nil {
		style, second = bad, text.OneLine(m.err.Error())
	}
	tabs := make([]string, len(screens))
	for i, s := range screens {
		tabs[i] = fmt.Sprintf("%d %s", i+1, s.title)
		if i == m.screen {
			tabs[i] = selected.Render(" " + tabs[i] + " ")
		}
	}
	return []string{spread(m.width, heading.Render(first), when), style.Render(ansi.Truncate(second, m.width, "…")), ansi.Truncate(strings.Join(tabs, " "), m.width, "…")}
}

// spread returns two texts at both ends of a line, or as much of the first one as there is room for.
func spread(width int, left, right string) string {
	left = ansi.Truncate(left, max(0, width-ansi.StringWidth(right)-1), "…")
	return ansi.Truncate(left+lipgloss.PlaceHorizontal(width-ansi.StringWidth(left), lipgloss.Right, " "+right), width, "")
}

// table returns the lines of the screen's table.
func (m *model) table() []string {
	screen := screens[m.screen]
	rows := screen.rows(m.view)
	for i, r := range rows { // the cursor stays on its row
		if r.key == m.key {
			m.cursor = i
		}
	}
	m.move(rows, m.cursor)
	m.first = max(min(m.first, m.cursor, len(rows)-m.room()), m.cursor-m.room()+1, 0)
	titles, line := layout(screen.columns, rows, m.width)
	lines := []string{ansi.Truncate(titles, m.width, "")}
	if len(rows) == 0 {
		empty := screen.empty
		if m.Filter != "" {
			empty += " The filter is " + text.Plain(m.Filter) + "."
		}
		return append(lines, "", ansi.Truncate(empty, m.width, "…"))
	}
	for i := m.first; i < min(len(rows), m.first+m.room()); i++ {
		text := ansi.Truncate(line(rows[i].cells), m.width, "")
		if i == m.cursor {
			text = selected.Width(m.width).Render(ansi.Strip(text))
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
	keys := "h help  q quit  / filter  s sort  enter detail  r ask  K revoke  y fence  space pause  e export  + - refresh"
	if m.ReadOnly {
		keys = "read-only  " + strings.Replace(keys, "r ask  K revoke  ", "", 1)
	}
	where := ""
	if n := m.view.Matching; n > len(m.view.Locks) {
		where = fmt.Sprintf("  %d of %d locks", len(m.view.Locks), n)
	}
	if m.Filter != "" {
		where += "  filter " + text.Plain(m.Filter)
	}
	return spread(m.width, keys, orders[m.order].text+where)
}
