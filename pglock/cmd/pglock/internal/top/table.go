package top

import (
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/pglock/pglock-go/fencing"
)

// The styles of texts. Their colors are those of the terminal's palette, which suit its background.
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

// row is a line of a table.
type row struct {
	cells []cell
	lock  string        // the name of the lock that it is about; empty if it is not about one
	token fencing.Token // of the grant that it is about; 0 if it is not about one
	key   string        // what stays the same when the row is read again
}

// column is a column of a table. A narrow screen cuts the text of the wide ones, and then drops those with
// the highest drop first.
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

// layout decides about the widths of the columns for these rows. It returns the first line of the table, and the
// function that draws another one.
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

// meter draws a share of 0 to 1.
func meter(share float64, width int) string {
	full := int(share*float64(width) + 0.5)
	full = min(max(full, 0), width)
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
