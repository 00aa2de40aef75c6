package trial

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// picture is a plot as it can be examined.
type picture struct {
	Width  float64     `xml:"width,attr"`
	Height float64     `xml:"height,attr"`
	Texts  []writing   `xml:"text"`
	Bars   []rectangle `xml:"rect"`
	Lines  []struct {
		X1     float64 `xml:"x1,attr"`
		X2     float64 `xml:"x2,attr"`
		Colour string  `xml:"stroke,attr"`
	} `xml:"line"`
	Dots []struct {
		X float64 `xml:"cx,attr"`
		Y float64 `xml:"cy,attr"`
	} `xml:"circle"`
}

type writing struct {
	X     float64 `xml:"x,attr"`
	Y     float64 `xml:"y,attr"`
	Where string  `xml:"text-anchor,attr"`
	Text  string  `xml:",chardata"`
}

// rectangle is a bar, or the background, which is 100% wide.
type rectangle struct {
	X      float64 `xml:"x,attr"`
	Width  string  `xml:"width,attr"`
	Height string  `xml:"height,attr"`
}

// plotted draws the row, and checks that no text covers another or leaves the picture.
func plotted(t *testing.T, o *Outcome) (p picture) {
	t.Helper()
	dir := t.TempDir()
	if err := o.WritePlot(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, strings.ToLower(o.Number)+".svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(text, &p); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	type box struct{ left, right, top, bottom float64 }
	var boxes []box
	for i, a := range p.Texts {
		wide := 6.2 * float64(len([]rune(a.Text))) // about, at 12 pixels; headings are wider and have a line of their own
		left := map[string]float64{"": a.X, onRight: a.X, around: a.X - wide/2, onLeft: a.X - wide}[a.Where]
		b := box{left, left + wide, a.Y - 9, a.Y + 2}
		if b.left < 0 || b.right > p.Width || b.top < 0 || b.bottom > p.Height {
			t.Errorf("%q leaves the picture: %+v", a.Text, b)
		}
		for j, other := range boxes {
			if b.left < other.right && other.left < b.right && b.top < other.bottom && other.top < b.bottom {
				t.Errorf("%q covers %q", a.Text, p.Texts[j].Text)
			}
		}
		boxes = append(boxes, b)
		if i == 0 && !strings.HasPrefix(a.Text, o.Number+": ") {
			t.Errorf("the heading is %q", a.Text)
		}
	}
	return p
}

func (p picture) says(text string) bool {
	return slices.ContainsFunc(p.Texts, func(w writing) bool { return w.Text == text })
}

// compare returns an outcome with one figure, and a target of the first subject for each rule: to the second if ratio.
func compared(rules []Rule, ratio bool, medians ...float64) *Outcome {
	o := &Outcome{Number: "P0", What: "a < b"}
	for i, m := range medians {
		o.Series = append(o.Series, &Series{Subject: fmt.Sprint("we & co ", i), Role: Ours, Figure: "gap", Unit: Micros, Median: m, Rounds: []float64{m / 2, m, m * 1.5}})
	}
	for _, r := range rules {
		v := Verdict{Ours: o.Series[0].side(), Target: r, Status: Pass}
		if ratio {
			v.Against = o.Series[1].side()
		}
		o.Verdicts = append(o.Verdicts, v)
	}
	return o
}

func TestBarsAndTheirTargets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o    *Outcome
		says []string
		mark float64 // where the first bar's target is, as a part of its length; 0: it has none
	}{
		"no target":                  {compared(nil, false, 500, 1500), []string{"we & co 0", "500 µs", "1.5 ms"}, 0},
		"a figure":                   {compared([]Rule{AtMost(700)}, false, 500, 1500), []string{"≤ 700 µs"}, 1.4},
		"a ratio":                    {compared([]Rule{AtMost(0.5)}, true, 500, 1500), []string{"≤ 750 µs"}, 1.5},
		"the strictest, at most":     {compared([]Rule{AtMost(900), AtMost(600), AtMost(700)}, false, 500, 1500), []string{"≤ 600 µs"}, 1.2},
		"the strictest, at least":    {compared([]Rule{AtLeast(0.1), AtLeast(0.2)}, true, 500, 1500), []string{"≥ 300 µs"}, 0.6},
		"that can not be on a scale": {compared([]Rule{AtMost(0)}, false, 500, 1500), []string{"≤ 0"}, 0},
		"nothing at all":             {compared(nil, false, 0, 0), []string{"0"}, 0},
	} {
		p := plotted(t, c.o)
		for _, text := range c.says {
			if !p.says(text) {
				t.Errorf("%s: no text %q in %+v", name, text, p.Texts)
			}
		}
		var marks []float64
		for _, l := range p.Lines {
			if l.Colour == targetColour {
				marks = append(marks, l.X1)
			}
		}
		if (c.mark > 0) != (len(marks) == 1) {
			t.Errorf("%s: marks at %v", name, marks)
			continue
		}
		first := p.Bars[slices.IndexFunc(p.Bars, func(r rectangle) bool { return r.Height == fmt.Sprintf("%.1f", float64(barHeight)) })]
		var width float64
		_, _ = fmt.Sscan(first.Width, &width)
		if c.mark > 0 && math.Abs((marks[0]-first.X)/width-c.mark) > 0.01 {
			t.Errorf("%s: the mark is at %v, the bar from %v by %v", name, marks[0], first.X, width)
		}
	}
}

func TestWhatIsComparedInAPlot(t *testing.T) {
	t.Parallel()
	o := &Outcome{Number: "P0", What: "leases", Missing: []Absence{{Subject: "redis"}}}
	for _, s := range []struct {
		subject, figure string
		unit            Unit
		median          float64
	}{
		{"ours", "lost", Count, 0}, {"ours", "slow", Micros, 7}, {"ours", "fast", Micros, 5},
		{"theirs", "another", Micros, 9}, {"theirs", "third", Micros, 8},
		{"others", "rate", PerSecond, 4},
	} {
		o.Series = append(o.Series, &Series{Subject: s.subject, Role: Ours, Figure: s.figure, Unit: s.unit, Median: s.median})
	}
	if got := o.compared(); len(got) != 1 || got[0].Figure != "lost" {
		t.Errorf("without targets it is the first figure, not %+v", got)
	}
	o.Verdicts = []Verdict{{Ours: o.Series[0].side0(), Target: AtMost(0).InEveryRound()}, {Target: AtMost(1)}, {Ours: o.Series[2].side0(), Target: AtMost(6)}}
	var got []string
	for _, s := range o.compared() {
		got = append(got, s.Subject+" "+s.Figure)
	}
	if want := []string{"ours fast", "theirs another"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if p := plotted(t, o); !p.says("not installed where this was measured: redis") || !p.says("ours") || !p.says("theirs: another") || p.says("others: rate") {
		t.Errorf("%+v", p.Texts)
	}
}

// side0 is a side without a range.
func (s *Series) side0() *Side {
	return &Side{Subject: s.Subject, Figure: s.Figure, Unit: s.Unit, Median: s.Median}
}

func TestGrowthIsDrawnOverALogarithmicAxis(t *testing.T) {
	t.Parallel()
	o := &Outcome{Number: "G0", What: "growth", Growth: &Growth{With: "names known", Figures: []string{"p50", "p99"}}}
	for _, size := range []float64{10_000, 1, 100, 1_000_000} { // in no order
		for figure, median := range map[string]float64{"p50": 300 + size/1e4, "p99": 900, "rate": 5} {
			o.Series = append(o.Series, &Series{Subject: fmt.Sprint(size), Size: size, Figure: figure, Unit: Micros, Median: median, Rounds: []float64{median, median * 1.1}})
		}
	}
	p := plotted(t, o)
	if len(p.Dots) != 2*4 {
		t.Fatalf("%d points", len(p.Dots))
	}
	for i := 2; i < 4; i++ { // from 1 to 100 as far as from 100 to 10,000, and so on
		if a, b := p.Dots[i-1].X-p.Dots[i-2].X, p.Dots[i].X-p.Dots[i-1].X; a <= 0 || math.Abs(a-b) > 0.2 {
			t.Errorf("steps of %v and %v", a, b)
		}
	}
	if p.Dots[3].Y >= p.Dots[0].Y || p.Dots[3].Y <= p.Dots[4].Y {
		t.Errorf("400 lies above 300 and below 900, not at %+v", p.Dots)
	}
	for i, median := range []string{"300 µs", "900 µs"} { // the lower line has its labels below, the upper one above
		label := p.Texts[slices.IndexFunc(p.Texts, func(w writing) bool { return w.Text == median && w.Where == around })]
		if above := label.Y < p.Dots[4*i].Y; above != (i == 1) {
			t.Errorf("%s at %v, its point at %v", median, label.Y, p.Dots[4*i].Y)
		}
	}
	for _, text := range []string{"1", "100", "10,000", "1,000,000", "names known", "p50 and p99, median of 2 rounds and their range", "300 µs", "400 µs", "900 µs"} {
		if !p.says(text) {
			t.Errorf("no text %q in %+v", text, p.Texts)
		}
	}
}

func TestOfNothingThereIsNoPlot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, o := range []*Outcome{{Number: "P0"}, {Number: "G0", Growth: &Growth{Figures: []string{"p50"}}}} {
		if err := o.WritePlot(dir); err != nil {
			t.Error(err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%d files", len(files))
	}
}
