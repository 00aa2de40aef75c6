package trial

import (
	"slices"
	"strings"
)

// What bars look like, in pixels.
const (
	barHeight   = 18
	barStep     = 28
	columnWidth = 96 // of the values, and of the targets
)

// colours are those of the roles' bars, and meanings what the legend calls a role.
var (
	colours  = map[Role]string{Ours: "#2166ac", Floor: "#aaaaaa", Peer: "#e08a6d"}
	meanings = map[Role]string{Ours: "pglock", Floor: "floor", Peer: "peer"}
)

// bars draws a bar for each subject, with a mark at the target that it must reach. It returns nil where there is none.
func (o *Outcome) bars() *svg {
	drawn := o.compared()
	if len(drawn) == 0 {
		return nil
	}
	figure, unit := o.plottedFigure()
	left := float64(plotMargin)
	for _, s := range drawn {
		left = max(left, plotMargin+widthOf(o.barLabel(s))+8)
	}
	right := float64(plotWidth - plotMargin - columnWidth)
	marks, targets := o.marks(drawn), false
	all := medians(drawn)
	for _, m := range marks {
		targets = targets || m != nil
		if m != nil {
			all = append(all, m.bound)
		}
	}
	if targets {
		right -= columnWidth
	}
	bottom := float64(plotTop + 12 + len(drawn)*barStep)
	height := bottom + 28
	if len(o.Missing) > 0 {
		height += 18
	}
	s := newScale(all, ends(drawn), left, right)
	p := o.begin(height, figure, s, drawn)
	p.legend(roles(drawn, targets))
	for _, tick := range s.ticks() {
		p.line(s.at(tick), plotTop, s.at(tick), bottom, 1, grid)
		p.text(s.at(tick), bottom+16, around, faint, unit.label(tick))
	}
	p.text(right+columnWidth-8, plotTop, onLeft, faint, "median")
	if targets {
		p.text(plotWidth-plotMargin, plotTop, onLeft, faint, "target")
	}
	for i, series := range drawn {
		y := float64(plotTop + 12 + i*barStep)
		base := y + 13
		p.text(left-8, base, onLeft, ink, o.barLabel(series))
		p.bar(left, y, max(s.at(series.Median)-left, 1), barHeight, colours[series.Role])
		if len(series.Rounds) > 1 {
			p.line(s.at(slices.Min(series.Rounds)), y+barHeight/2, s.at(slices.Max(series.Rounds)), y+barHeight/2, 1.5, ink)
		}
		p.text(right+columnWidth-8, base, onLeft, ink, unit.label(series.Median))
		if m := marks[i]; m != nil {
			if m.bound > 0 {
				p.line(s.at(m.bound), y-4, s.at(m.bound), y+barHeight+4, 2.5, targetColour)
			}
			p.text(plotWidth-plotMargin, base, onLeft, targetColour, m.sign+unit.label(m.bound))
		}
	}
	if len(o.Missing) > 0 {
		p.text(plotMargin, height-8, onRight, faint, "not installed where this was measured: "+namesOf(o.Missing))
	}
	return p
}

const targetColour = "#1a7f37"

// plottedFigure is the figure that is compared: that of the first target that is about speed or size and not about what
// must never happen, or else the first of all. There are figures.
func (o *Outcome) plottedFigure() (string, Unit) {
	for _, v := range o.Verdicts {
		if v.Ours != nil && !v.Target.every {
			return v.Ours.Figure, v.Ours.Unit
		}
	}
	return o.Series[0].Figure, o.Series[0].Unit
}

// barLabel names a subject, and its figure if it has another one in the stead of that which is compared.
func (o *Outcome) barLabel(s *Series) string {
	if figure, _ := o.plottedFigure(); figure != s.Figure {
		return s.Subject + ": " + s.Figure
	}
	return s.Subject
}

// compared returns the figure that is compared, of each subject that has it or has another one in its unit.
func (o *Outcome) compared() []*Series {
	if len(o.Series) == 0 {
		return nil
	}
	figure, unit := o.plottedFigure()
	var drawn []*Series
	place := map[string]int{}
	for _, s := range o.Series {
		i, known := place[s.Subject]
		switch {
		case s.Unit != unit:
		case !known:
			place[s.Subject] = len(drawn)
			drawn = append(drawn, s)
		case s.Figure == figure:
			drawn[i] = s
		}
	}
	return drawn
}

// mark is the bound of a bar, in the unit of the bars.
type mark struct {
	sign  string
	bound float64
}

// marks returns the strictest target of each bar, nil for one that has none.
func (o *Outcome) marks(drawn []*Series) []*mark {
	marks := make([]*mark, len(drawn))
	find := func(side *Side) int {
		return slices.IndexFunc(drawn, func(s *Series) bool { return side != nil && s.Subject == side.Subject && s.Figure == side.Figure })
	}
	for _, v := range o.Verdicts {
		i := find(v.Ours)
		if i < 0 {
			continue
		}
		m := &mark{atMost, v.Target.bound}
		if v.Target.least {
			m.sign = atLeast
		}
		if v.Against != nil {
			j := find(v.Against)
			if j < 0 {
				continue
			}
			m.bound *= drawn[j].Median
		}
		if marks[i] == nil || v.Target.better(m.bound, marks[i].bound) {
			marks[i] = m
		}
	}
	return marks
}

// roles returns the legend of the bars.
func roles(drawn []*Series, targets bool) (keys []key) {
	for _, role := range []Role{Ours, Floor, Peer} {
		if slices.ContainsFunc(drawn, func(s *Series) bool { return s.Role == role }) {
			keys = append(keys, key{colours[role], meanings[role]})
		}
	}
	if targets {
		keys = append(keys, key{targetColour, "target"})
	}
	return keys
}

func namesOf(missing []Absence) string {
	var names []string
	for _, m := range missing {
		names = append(names, m.Subject)
	}
	return strings.Join(names, "; ")
}
