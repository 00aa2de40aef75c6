package trial

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// plotted draws the row and returns the texts of the picture.
func plotted(t *testing.T, o *Outcome) (texts []string) {
	t.Helper()
	dir := t.TempDir()
	if err := o.WritePlot(dir); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(dir, strings.ToLower(o.Number)+".svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := xml.NewDecoder(file)
	inText := false
	for {
		token, err := decoder.Token()
		if err != nil {
			break // the end
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
		case xml.CharData:
			if inText {
				texts = append(texts, strings.TrimSpace(string(token)))
			}
		case xml.EndElement:
			inText = false
		}
	}
	if len(texts) == 0 || !slices.Contains(texts, o.Number+": "+o.What) {
		t.Errorf("there is no heading in %q", texts)
	}
	return texts
}

// outcome has one figure per median. Each rule is a target of the first subject, against the second
// one if ratio.
func outcome(rules []Rule, ratio bool, medians ...float64) *Outcome {
	o := &Outcome{Number: "B0", What: "a < b"}
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

func TestSubjectsAndTheirTargets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o     *Outcome
		texts []string
		bound []float64 // the target of the first subject
	}{
		"no target":               {outcome(nil, false, 500, 1500), []string{"we & co 0", "500 us", "1500 us"}, nil},
		"a figure":                {outcome([]Rule{AtMost(700)}, false, 500, 1500), []string{"500 us, target 700 us", "1500 us"}, []float64{700}},
		"a ratio":                 {outcome([]Rule{AtMost(0.5)}, true, 500, 1500), []string{"500 us, target 750 us"}, []float64{750}},
		"the strictest, at most":  {outcome([]Rule{AtMost(900), AtMost(600), AtMost(700)}, false, 500, 1500), nil, []float64{600}},
		"the strictest, at least": {outcome([]Rule{AtLeast(0.1), AtLeast(0.2)}, true, 500, 1500), nil, []float64{300}},
		"without a bound":         {outcome([]Rule{NoBound()}, true, 500, 1500), []string{"500 us"}, nil},
		"zero":                    {outcome([]Rule{AtMost(0)}, false, 500, 1500), nil, []float64{0}},
		"on a logarithmic axis":   {outcome([]Rule{AtMost(0)}, false, 5, 0, 15000), []string{"5.0 us, target 0.0 us", "0.0 us", "15000 us"}, []float64{0}},
		"nothing at all":          {outcome(nil, false, 0, 0), []string{"0.0 us"}, nil},
	} {
		texts := plotted(t, c.o)
		for _, want := range c.texts {
			if !slices.Contains(texts, want) {
				t.Errorf("%s: no text %q in %q", name, want, texts)
			}
		}
		drawn := c.o.compared()
		bounds := c.o.targets(drawn)
		if got, found := bounds[drawn[0]]; found != (c.bound != nil) || found && got != c.bound[0] {
			t.Errorf("%s: the target is %v, want %v", name, bounds, c.bound)
		}
	}
}

func TestWhatIsComparedInAPlot(t *testing.T) {
	t.Parallel()
	o := &Outcome{Number: "B0", What: "leases", Missing: []Absence{{Subject: "redis"}}}
	for _, s := range []struct {
		subject, figure string
		unit            Unit
		median          float64
	}{
		{"ours", "lost", Count, 0}, {"ours", "slow", Micros, 7}, {"ours", "fast", Micros, 5},
		{"theirs", "another", Micros, 9}, {"theirs", "third", Micros, 8},
		{"others", "rate", PerSecond, 4},
	} {
		o.Series = append(o.Series, &Series{Subject: s.subject, Role: Ours, Figure: s.figure, Unit: s.unit, Median: s.median, Rounds: []float64{s.median}})
	}
	if got := o.compared(); len(got) != 1 || got[0].Figure != "lost" {
		t.Errorf("without targets it is the first figure, not %+v", got)
	}
	o.Verdicts = []Verdict{{Ours: o.Series[0].side(), Target: AtMost(0).InEveryRound()}, {Target: AtMost(1)}, {Ours: o.Series[2].side(), Target: AtMost(6)}}
	var got []string
	for _, s := range o.compared() {
		got = append(got, s.Subject+" "+s.Figure)
	}
	if want := []string{"ours fast", "theirs another"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	texts := plotted(t, o)
	for _, want := range []string{"not installed where this was measured: redis", "ours", "theirs: another"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in %q", want, texts)
		}
	}
	if slices.Contains(texts, "others: rate") {
		t.Errorf("another unit is drawn: %q", texts)
	}
}

func TestOfNothingThereIsNoPlot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (&Outcome{Number: "B0"}).WritePlot(dir); err != nil {
		t.Error(err)
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%d files", len(files))
	}
}
