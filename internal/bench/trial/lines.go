package trial

import (
	"math"
	"slices"
	"strings"
)

// What lines look like, in pixels.
const (
	linesHeight = 400
	lineLeft    = 76 // of the axis
	lineInset   = 44 // between the axis and the first point, and as much after the last
)

// lineColours are those of the figures, one after the other.
var lineColours = []string{"#2166ac", "#b2182b", "#1a7f37"}

// lines draws each figure of the row's growth as a line over the sizes, which lie on a logarithmic axis. It returns nil
// where there is none.
func (o *Outcome) lines() *svg {
	var all []*Series
	var lines [][]*Series
	for _, figure := range o.Growth.Figures {
		if line := o.line(figure); len(line) > 0 {
			lines, all = append(lines, line), append(all, line...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	const bottom = linesHeight - 52
	y := newScale(medians(all), ends(all), bottom, plotTop+24)
	x := scale{low: math.Inf(1), high: math.Inf(-1), log: true, from: lineLeft + lineInset, to: plotWidth - plotMargin - lineInset}
	for _, s := range all {
		x.low, x.high = min(x.low, math.Log10(s.Size)), max(x.high, math.Log10(s.Size))
	}
	p := o.begin(linesHeight, strings.Join(o.Growth.Figures, " and "), y, all)
	if len(lines) > 1 {
		var keys []key
		for i, line := range lines {
			keys = append(keys, key{lineColours[i%len(lineColours)], line[0].Figure})
		}
		p.legend(keys)
	}
	for _, tick := range y.ticks() {
		p.line(lineLeft, y.at(tick), plotWidth-plotMargin, y.at(tick), 1, grid)
		p.text(lineLeft-8, y.at(tick)+4, onLeft, faint, all[0].Unit.label(tick))
	}
	for _, s := range lines[0] {
		p.line(x.at(s.Size), bottom, x.at(s.Size), bottom+5, 1, faint)
		p.text(x.at(s.Size), bottom+20, around, faint, grouped(s.Size))
	}
	p.text((x.from+x.to)/2, linesHeight-12, around, faint, o.Growth.With)
	for i, line := range lines {
		p.points(line, x, y, lineColours[i%len(lineColours)], func(s *Series) bool {
			return !slices.ContainsFunc(all, func(o *Series) bool { return o.Size == s.Size && o.Median > s.Median })
		})
	}
	return p
}

// line returns the figure of each subject, the smallest first.
func (o *Outcome) line(figure string) (line []*Series) {
	for _, s := range o.Series {
		if s.Figure == figure && s.Size > 0 {
			line = append(line, s)
		}
	}
	slices.SortStableFunc(line, func(a, b *Series) int {
		return int(math.Copysign(1, a.Size-b.Size))
	})
	return line
}

// points draws a line with its points, each labelled: above it if it is the uppermost of that size.
func (s *svg) points(line []*Series, x, y scale, colour string, uppermost func(*Series) bool) {
	for i, at := range line {
		px, py := x.at(at.Size), y.at(at.Median)
		if i > 0 {
			s.line(x.at(line[i-1].Size), y.at(line[i-1].Median), px, py, 2, colour)
		}
		top, under := py, py
		if len(at.Rounds) > 1 {
			top, under = y.at(slices.Max(at.Rounds)), y.at(slices.Min(at.Rounds))
			s.line(px, top, px, under, 1.5, colour)
		}
		s.dot(px, py, colour)
		if uppermost(at) {
			s.text(px, min(top, py)-9, around, ink, at.Unit.label(at.Median))
		} else {
			s.text(px, max(under, py)+19, around, ink, at.Unit.label(at.Median))
		}
	}
}
