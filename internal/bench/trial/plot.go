package trial

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// What a plot looks like, in pixels.
const (
	plotWidth  = 760
	labelWidth = 270
	valueWidth = 90
	barHeight  = 18
	barStep    = 26
	plotTop    = 54
)

// colours are those of the roles' bars.
var colours = map[Role]string{Ours: "#2166ac", Floor: "#999999", Peer: "#d6604d"}

// WritePlot draws the first figure of each subject as a bar, on a scale of powers of ten,
// and writes it as SVG into the directory, in a file named for the row. Subjects whose
// first figure is another one than that of the first subject are left out.
func (o *Outcome) WritePlot(dir string) error {
	bars := o.bars()
	if len(bars) == 0 {
		return nil
	}
	least, most := math.Inf(1), 0.0
	for _, s := range bars {
		least, most = min(least, s.Median), max(most, s.Median)
	}
	low := math.Floor(math.Log10(max(least, 1e-9)) - 0.3)
	span := max(math.Log10(max(most, 1e-9))-low, 0.1)
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=%q width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
		"http://www.w3.org/2000/svg", plotWidth, plotTop+len(bars)*barStep+10)
	b.WriteString("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n")
	fmt.Fprintf(&b, "<text x=\"10\" y=\"20\" font-size=\"15\">%s: %s</text>\n", o.Number, escape(o.What))
	fmt.Fprintf(&b, "<text x=\"10\" y=\"38\" fill=\"#555\">%s, medians, logarithmic scale</text>\n", escape(bars[0].Figure))
	for i, s := range bars {
		y := plotTop + i*barStep
		width := (math.Log10(max(s.Median, 1e-9)) - low) / span * (plotWidth - labelWidth - valueWidth)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", labelWidth-8, y+13, escape(s.Subject))
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", labelWidth, y, max(width, 1), barHeight, colours[s.Role])
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", labelWidth+max(width, 1)+6, y+13, s.Unit.format(s.Median))
	}
	b.WriteString("</svg>\n")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strings.ToLower(o.Number)+".svg"), []byte(b.String()), 0o644)
}

// bars returns the first figure of each subject that has the same as the first subject.
func (o *Outcome) bars() []*Series {
	var bars []*Series
	seen := map[string]bool{}
	for _, s := range o.Series {
		if seen[s.Subject] {
			continue
		}
		seen[s.Subject] = true
		if len(bars) == 0 || s.Unit == bars[0].Unit {
			bars = append(bars, s)
		}
	}
	return bars
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
