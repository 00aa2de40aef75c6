package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// around is the number of lines around a table: two of the server, the names of the screens, the titles,
// and the keys.
const around = 5

// room returns how many rows fit.
func (m *model) room() int { return max(1, m.height-around) }

func (m *model) View() tea.View {
	lines := m.header()
	if m.mode == reading {
		detail := strings.Split(ansi.Wrap(strings.Join(m.detail, "\n"), m.width, ""), "\n")
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
		when = m.view.At.UTC().Format("15:04:05") + " UTC, every " + m.Every.String()
		if pause := busyShare * m.took; pause > m.Every {
			when = m.view.At.UTC().Format("15:04:05") + " UTC, every " + text.Short(pause) + " as a read takes long"
		}
	}
	if m.paused {
		when += ", paused"
	}
	rate := 0.0
	for _, r := range m.view.rates {
		rate += r
	}
	facts := []string{
		fmt.Sprintf("held %d", s.Held), fmt.Sprintf("waiting %d", s.Waiting), fmt.Sprintf("once %d", s.Started), fmt.Sprintf("%.1f changes/s", rate),
		"oldest transaction " + text.Short(s.OldestTransaction), fmt.Sprintf("notify queue %.0f %%", 100*s.NotifyQueue),
		fmt.Sprintf("connections %d/%d", s.Connections, s.MaxConnections), fmt.Sprintf("listening %d", s.Listeners), fmt.Sprintf("dead rows %d", s.DeadRows),
	}
	second := ansi.Truncate(strings.Join(facts, "  "), m.width, "…")
	style := tones[faint]
	if s.OldestTransaction > time.Minute || s.NotifyQueue > 0.5 {
		style = tones[warning]
	}
	if m.err != nil {
		style, second = tones[bad], ansi.Truncate(text.OneLine(m.err.Error()), m.width, "…")
	}
	tabs := m.tabs(len("schedules"))
	if ansi.StringWidth(tabs) > m.width {
		tabs = m.tabs(len("sched"))
	}
	return []string{spread(m.width, heading.Render(first), when), style.Render(second), ansi.Truncate(tabs, m.width, "…")}
}

// tabs returns the names of the screens, the long ones cut to so many letters.
func (m *model) tabs(letters int) string {
	tabs := make([]string, len(screens))
	for i, s := range screens {
		name := s.title
		if len(name) > len("advisory") || i == blockingScreen {
			name = name[:min(letters, len(name))]
		}
		tabs[i] = fmt.Sprintf("%d %s", i+1, name)
		if i == m.screen {
			tabs[i] = selected.Render(" " + tabs[i] + " ")
		}
	}
	return strings.Join(tabs, " ")
}

// spread returns two texts at both ends of a line, or as much of the first one as there is room for.
func spread(width int, left, right string) string {
	gap := width - ansi.StringWidth(left) - ansi.StringWidth(right)
	if gap < 1 {
		left = ansi.Truncate(left, max(0, width-ansi.StringWidth(right)-1), "…")
		gap = max(1, width-ansi.StringWidth(left)-ansi.StringWidth(right))
	}
	return ansi.Truncate(left+strings.Repeat(" ", gap)+right, width, "")
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
	widths := layout(screen.columns, rows, m.width)
	lines := []string{ansi.Truncate(heading.Render(line(screen.columns, widths, titles(screen.columns), true)), m.width, "")}
	if len(rows) == 0 {
		empty := screen.empty
		if m.Filter != "" {
			empty += " The filter is " + text.Plain(m.Filter) + "."
		}
		return append(lines, "", ansi.Truncate(empty, m.width, "…"))
	}
	for i := m.first; i < min(len(rows), m.first+m.room()); i++ {
		text := ansi.Truncate(line(screen.columns, widths, rows[i].cells, i == m.cursor), m.width, "")
		if i == m.cursor {
			text = selected.Render(text + strings.Repeat(" ", m.width-ansi.StringWidth(text)))
		}
		lines = append(lines, text)
	}
	return lines
}

// footer returns the last line: an input, the result of an action, or the keys.
func (m *model) footer() string {
	switch {
	case m.mode == filtering:
		return "filter names (part, pattern with * and ?, or @HOLDER): " + m.input + "█"
	case m.mode == asking:
		return fmt.Sprintf("ask %s to release grant %d, reason: %s█", text.Plain(m.target.lock), m.target.token, text.OneLine(m.input))
	case m.mode == confirming:
		return tones[bad].Render(fmt.Sprintf("revoke grant %d of %s, type its name: %s█", m.target.token, text.Plain(m.target.lock), text.OneLine(m.input)))
	case m.note != "":
		return heading.Render(m.note)
	case m.mode == reading:
		return "up, down: scroll  q: back"
	}
	keys := "h help  q quit  / filter  s sort  enter detail  r ask  K revoke  y fence  space pause  e export  + - refresh"
	if m.ReadOnly {
		keys = "read-only  h help  q quit  / filter  s sort  enter detail  y fence  space pause  e export  + - refresh"
	}
	where := ""
	if n := m.view.Matching; n > len(m.view.Locks) {
		where = fmt.Sprintf("  %d of %d locks", len(m.view.Locks), n)
	}
	if m.Filter != "" {
		where += "  filter " + text.Plain(m.Filter)
	}
	return spread(m.width, keys, sortedBy[m.order]+where)
}

var sortedBy = map[inspect.Order]string{
	inspect.ByWaiters: "by waiters", inspect.ByHeld: "by time held", inspect.ByRemaining: "by time left", inspect.ByName: "by name",
}

func helpLines() []string {
	return strings.Split(`1 to 9, tab      the screens
up, down         the rows; also k and j, page up and down, home and end
enter            everything about the row
/ and escape     show only names with this part, or of this pattern, or of @HOLDER; show all
s                sort: by waiters, by the time held, by the time left, by name
space            pause, and go on
+ and -          refresh less or more often
y                copy the fence of the grant, for pglock and for fencing.ParseFence
e                write all that was read into a JSON file of the working directory
r                ask the holder to release the lock, with a reason
K                revoke the grant, after its name was typed: its guarded writes fail at once
q                quit

The bar is the time that a grant lasts unless renewed, as a part of the longest time that this screen has
seen for it. A holder renews in time when its bar stays above half. CHANGES/S are grants, renewals and releases.
Sessions of other roles are only seen by a member of pg_read_all_stats.`, "\n")
}
