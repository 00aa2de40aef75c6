package top

import (
	"cmp"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// tone is what a cell says beside its text. Its colors are those of the terminal's palette, which suit its
// background.
type tone int

const (
	plainTone tone = iota
	good
	warning
	bad
	faint
)

var tones = map[tone]lipgloss.Style{
	plainTone: lipgloss.NewStyle(),
	good:      lipgloss.NewStyle().Foreground(lipgloss.Green),
	warning:   lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	bad:       lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	faint:     lipgloss.NewStyle().Faint(true),
}

var (
	heading  = lipgloss.NewStyle().Bold(true)
	selected = lipgloss.NewStyle().Reverse(true)
)

// cell is a text without control characters, and its tone.
type cell struct {
	text string
	tone tone
}

// row is a line of a table.
type row struct {
	cells []cell
	lock  string // the name of the lock that it is about; empty if it is not about one
	token int64  // of the grant that it is about; 0 if it is not about one
	key   string // what stays the same when the row is read again
}

// column is a column of a table. A narrow screen drops those with the highest drop first, and cuts the
// text of the wide ones.
type column struct {
	title string
	right bool // aligned
	drop  int  // 0: never dropped
	wide  bool
	least int // how narrow a wide column may become; 0: leastWide
}

const leastWide = 16

// layout decides about the widths of the columns: 0 for one that is dropped.
func layout(columns []column, rows []row, width int) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = ansi.StringWidth(c.title)
		for _, r := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(r.cells[i].text))
		}
	}
	over := func() int {
		sum := -2
		for _, w := range widths {
			if w > 0 {
				sum += w + 2
			}
		}
		return sum - width
	}
	for over() > 0 {
		widest, first := -1, -1
		for i, c := range columns {
			if c.wide && widths[i] > cmp.Or(c.least, leastWide) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
			if c.drop > 0 && widths[i] > 0 && (first < 0 || c.drop > columns[first].drop) {
				first = i
			}
		}
		switch {
		case widest >= 0:
			widths[widest] = max(widths[widest]-over(), cmp.Or(columns[widest].least, leastWide))
		case first >= 0:
			widths[first] = 0
		default:
			return widths // the line is cut
		}
	}
	return widths
}

// line returns the cells with these widths, and without tones if it gets a style as a whole.
func line(columns []column, widths []int, cells []cell, whole bool) string {
	var parts []string
	for i, c := range cells {
		if widths[i] == 0 {
			continue
		}
		text := ansi.Truncate(c.text, widths[i], "…")
		pad := strings.Repeat(" ", widths[i]-ansi.StringWidth(text))
		switch {
		case columns[i].right:
			text = pad + text
		case i < len(cells)-1:
			text += pad
		}
		if !whole {
			text = tones[c.tone].Render(text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "  ")
}

// titles returns the cells of a table's first line.
func titles(columns []column) []cell {
	cells := make([]cell, len(columns))
	for i, c := range columns {
		cells[i] = cell{text: c.title}
	}
	return cells
}

// meter draws a share of 0 to 1.
func meter(share float64, width int) string {
	full := int(share*float64(width) + 0.5)
	full = min(max(full, 0), width)
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
