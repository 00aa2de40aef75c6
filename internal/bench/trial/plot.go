package trial

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What every plot looks like, in pixels.
const (
	plotWidth  = 860
	plotMargin = 16
	plotTop    = 74 // below the headings and the legend
)

// WritePlot draws the row and writes it as SVG into the directory, in a file named for its
// number: bars that compare the subjects, or lines if it tells how something grows. Of a
// row without figures there is no plot.
func (o *Outcome) WritePlot(dir string) error {
	draw := o.bars
	if o.Growth != nil {
		draw = o.lines
	}
	picture := draw()
	if picture == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strings.ToLower(o.Number)+".svg"), picture.end(), 0o644)
}

// begin draws what stands above a plot.
func (o *Outcome) begin(height float64, what string, s scale, drawn []*Series) *svg {
	picture := newSVG(plotWidth, height, o.Number+": "+o.What)
	picture.heading(plotMargin, 24, o.Number+": "+o.What)
	if rounds := len(drawn[0].Rounds); rounds > 1 {
		what += fmt.Sprintf(", median of %d rounds and their range", rounds)
	}
	if s.log {
		what += ", logarithmic scale"
	}
	picture.text(plotMargin, 42, onRight, faint, what)
	return picture
}

// key is an entry of a legend.
type key struct{ colour, text string }

// legend draws what the colours mean.
func (s *svg) legend(keys []key) {
	x := float64(plotMargin)
	for _, k := range keys {
		s.bar(x, 51, 10, 10, k.colour)
		s.text(x+15, 60, onRight, ink, k.text)
		x += 15 + widthOf(k.text) + 16
	}
}

// medians returns those of the series.
func medians(drawn []*Series) (all []float64) {
	for _, s := range drawn {
		all = append(all, s.Median)
	}
	return all
}

// ends returns the ends of their ranges.
func ends(drawn []*Series) (all []float64) {
	for _, s := range drawn {
		if len(s.Rounds) > 1 {
			all = append(all, slices.Min(s.Rounds), slices.Max(s.Rounds))
		}
	}
	return all
}
