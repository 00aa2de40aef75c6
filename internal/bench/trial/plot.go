package trial

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	plotWidth  = 900 // in pixels, as all sizes are
	namesWidth = 330
	axisWidth  = 360
	lineHeight = 26
)

// colors are those of the subjects, by their role.
var colors = map[Role]string{Ours: "#2166ac", Floor: "#888888", Peer: "#e08a6d"}

// WritePlot draws the row as SVG into the directory, in a file named for its number: a line for each
// subject, with its median and the range of its rounds. A row without figures has no plot.
func (o *Outcome) WritePlot(dir string) error {
	drawn := o.compared()
	if len(drawn) == 0 {
		return nil
	}
	figure, unit := o.plottedFigure()
	place := axis(drawn)
	var svg bytes.Buffer
	y := 24
	text := func(x int, color, s string) {
		fmt.Fprintf(&svg, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", x, y, color, html.EscapeString(s))
	}
	fmt.Fprintf(&svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", plotWidth, 90+lineHeight*(len(drawn)+len(o.Missing)))
	text(10, "black", o.Number+": "+o.What)
	y += 20
	text(10, "black", fmt.Sprintf("%s: median and range of the rounds. Blue: pglock, gray: a floor, orange: a peer.", figure))
	for _, s := range drawn {
		y += lineHeight
		color, side := colors[s.Role], s.side()
		label := s.Subject
		if s.Figure != figure {
			label += ": " + s.Figure
		}
		text(10, color, label)
		fmt.Fprintf(&svg, "<path d=\"M%d %dH%d\" stroke=\"%s\"/><circle cx=\"%d\" cy=\"%[2]d\" r=\"5\" fill=\"%[4]s\"/>\n",
			place(side.Min), y-4, place(side.Max), color, place(s.Median))
		text(place(side.Max)+10, color, unit.format(s.Median)+mark(s.Unsteady))
	}
	for _, m := range o.Missing {
		y += lineHeight
		text(10, "black", "not installed where this was measured: "+m.Subject)
	}
	svg.WriteString("</svg>\n")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strings.ToLower(o.Number)+".svg"), svg.Bytes(), 0o644)
}

// axis returns the place of each value. The axis is linear and begins at zero, so that lengths compare.
func axis(drawn []*Series) (place func(v float64) int) {
	most := math.SmallestNonzeroFloat64
	for _, s := range drawn {
		most = max(most, s.Median, slices.Max(s.Rounds))
	}
	return func(v float64) int { return namesWidth + int(axisWidth*v/most) }
}

// plottedFigure is the figure that is compared: that of the first target about speed or size, rather
// than about what must never happen, or else the first of all. There are figures.
func (o *Outcome) plottedFigure() (string, Unit) {
	for _, v := range o.Verdicts {
		if v.Ours != nil && !strings.HasSuffix(v.Target, inEvery) {
			return v.Ours.Figure, v.Ours.Unit
		}
	}
	return o.Series[0].Figure, o.Series[0].Unit
}

// compared returns the plotted figure of each subject, or the subject's first one in the same unit.
func (o *Outcome) compared() []*Series {
	if len(o.Series) == 0 {
		return nil
	}
	figure, unit := o.plottedFigure()
	var drawn []*Series
	for _, s := range o.Series {
		i := slices.IndexFunc(drawn, func(d *Series) bool { return d.Subject == s.Subject })
		switch {
		case s.Unit != unit:
		case i < 0:
			drawn = append(drawn, s)
		case s.Figure == figure:
			drawn[i] = s
		}
	}
	return drawn
}
