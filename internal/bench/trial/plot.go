package trial

import (
	"errors"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	plotWidth = 9 * vg.Inch

	// logFrom is the ratio of the largest to the smallest value from which on an axis is logarithmic.
	logFrom = 20
)

// roles are how subjects are shown, in the order of the legend.
var roles = []struct {
	role  Role
	name  string
	color color.Color
}{
	{Ours, "pglock", color.RGBA{0x21, 0x66, 0xac, 0xff}},
	{Floor, "floor", color.RGBA{0x88, 0x88, 0x88, 0xff}},
	{Peer, "peer", color.RGBA{0xe0, 0x8a, 0x6d, 0xff}},
}

var targetColor = color.RGBA{0x1a, 0x7f, 0x37, 0xff}

// WritePlot draws the row as SVG into the directory, in a file named for its number: the subjects
// side by side with their targets. A row without figures has no plot.
func (o *Outcome) WritePlot(dir string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	p := plot.New()
	p.Title.Text = o.Number + ": " + o.What
	p.Title.Padding = vg.Points(12)
	p.Legend.Top, p.Legend.YOffs = true, vg.Points(4)
	p.Add(plotter.NewGrid())
	height, err := o.compare(p)
	if height == 0 || err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return p.Save(plotWidth, height, filepath.Join(dir, strings.ToLower(o.Number)+".svg"))
}

// compare shows a median with its range per subject, one below the other.
func (o *Outcome) compare(p *plot.Plot) (height vg.Length, err error) {
	drawn := o.compared()
	if len(drawn) == 0 {
		return 0, nil
	}
	figure, unit := o.plottedFigure()
	p.X.Label.Text = figure + ", " + string(unit) + ": median and range of the rounds"
	for i, m := range o.Missing {
		if i == 0 {
			p.X.Label.Text += "\nnot installed where this was measured"
		}
		p.X.Label.Text += ": " + m.Subject
	}
	targets := o.targets(drawn)
	floor := scaleAxis(&p.X, append(medians(drawn), slices.Concat(targets...)...))
	defer func() { p.X.Max += (p.X.Max - p.X.Min) / 10 }() // room for the last label
	var names []string
	for i := range drawn { // the first one on top
		names = append([]string{"  " + o.plotLabel(drawn[i])}, names...)
	}
	p.NominalY(names...)
	p.Y.Max = float64(len(drawn) + 1) // room for the legend
	var marks plotter.XYs
	place := func(i int) float64 { return float64(len(drawn) - 1 - i) }
	for _, r := range roles {
		points := &series{floor: floor}
		for i, s := range drawn {
			if s.Role == r.role {
				points.add(s.Median, place(i), s, unit)
			}
		}
		err = errors.Join(err, points.draw(p, r.name, r.color))
	}
	for i, bounds := range targets {
		for _, bound := range bounds {
			marks = append(marks, plotter.XY{X: max(bound, floor), Y: place(i)})
		}
	}
	if len(marks) > 0 {
		target, failed := plotter.NewScatter(marks)
		target.GlyphStyle = draw.GlyphStyle{Color: targetColor, Radius: vg.Points(6), Shape: draw.PlusGlyph{}}
		p.Add(target)
		p.Legend.Add("target", target)
		err = errors.Join(err, failed)
	}
	return vg.Points(float64(140 + 30*len(drawn))), err
}

// series is points with their ranges and labels.
type series struct {
	points plotter.XYs
	ranges plotter.XErrors
	labels []string
	floor  float64 // where values that are not on the axis are drawn
}

func (s *series) add(median, y float64, of *Series, unit Unit) {
	x := max(median, s.floor)
	rounds := append([]float64{x}, of.Rounds...)
	s.points = append(s.points, plotter.XY{X: x, Y: y})
	s.labels = append(s.labels, unit.format(median)+mark(of.Unsteady))
	s.ranges = append(s.ranges, struct{ Low, High float64 }{x - max(slices.Min(rounds), s.floor), slices.Max(rounds) - x})
}

func (s *series) draw(p *plot.Plot, name string, c color.Color) error {
	if len(s.points) == 0 {
		return nil
	}
	dots, err := plotter.NewScatter(s.points)
	dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
	bars, err2 := plotter.NewXErrorBars(struct {
		plotter.XYer
		plotter.XErrorer
	}{s.points, s.ranges})
	bars.Color = c
	labels, err3 := plotter.NewLabels(plotter.XYLabels{XYs: s.points, Labels: s.labels})
	labels.Offset = vg.Point{X: -vg.Points(12), Y: vg.Points(8)}
	p.Add(bars, dots, labels)
	p.Legend.Add(name, dots)
	return errors.Join(err, err2, err3)
}

// scaleAxis makes the axis logarithmic if the values need it. It returns the least value that can be
// drawn.
func scaleAxis(axis *plot.Axis, values []float64) (floor float64) {
	positive := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return v <= 0 })
	if len(positive) == 0 || slices.Max(positive) < logFrom*slices.Min(positive) {
		axis.Min = 0
		return 0
	}
	floor = math.Pow(10, math.Floor(math.Log10(slices.Min(positive))))
	axis.Min, axis.Scale, axis.Tick.Marker = floor, plot.LogScale{}, plot.LogTicks{Prec: -1}
	return floor
}

func medians(drawn []*Series) (all []float64) {
	for _, s := range drawn {
		all = append(all, s.Median)
	}
	return all
}

// plottedFigure is the figure that is compared: that of the first target about speed or size, rather
// than about what must never happen, or else the first of all. There are figures.
func (o *Outcome) plottedFigure() (string, Unit) {
	for _, v := range o.Verdicts {
		if v.Ours != nil && !v.Target.every {
			return v.Ours.Figure, v.Ours.Unit
		}
	}
	return o.Series[0].Figure, o.Series[0].Unit
}

// plotLabel names a subject, and its figure if that is not the plotted one.
func (o *Outcome) plotLabel(s *Series) string {
	if figure, _ := o.plottedFigure(); figure != s.Figure {
		return s.Subject + ": " + s.Figure
	}
	return s.Subject
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

// targets returns the bounds for each subject, in the unit of the plot. Of several the strictest
// counts.
func (o *Outcome) targets(drawn []*Series) [][]float64 {
	bounds := make([][]float64, len(drawn))
	find := func(side *Side) int {
		return slices.IndexFunc(drawn, func(s *Series) bool { return side != nil && s.Subject == side.Subject && s.Figure == side.Figure })
	}
	for _, v := range o.Verdicts {
		i, bound := find(v.Ours), v.Target.bound
		if v.Against != nil {
			j := find(v.Against)
			if j < 0 {
				continue
			}
			bound *= drawn[j].Median
		}
		if i >= 0 && (bounds[i] == nil || v.Target.better(bound, bounds[i][0])) {
			bounds[i] = []float64{bound}
		}
	}
	return bounds
}
