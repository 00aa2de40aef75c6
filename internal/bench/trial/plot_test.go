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

// TestSubjectsAreNamedWithTheirMedians, also where all are zero.
func TestSubjectsAreNamedWithTheirMedians(t *testing.T) {
	t.Parallel()
	for want, medians := range map[string][]float64{
		"500 us, 1500 us":          {500, 1500},
		"5.0 us, 0.0 us, 15000 us": {5, 0, 15000},
		"0.0 us, 0.0 us":           {0, 0},
	} {
		o := &Outcome{Number: "B0", What: "a < b"}
		for i, m := range medians {
			o.Series = append(o.Series, &Series{
				Subject: fmt.Sprint("we & co ", i), Role: Ours, Figure: "gap", Unit: Micros, Median: m, Rounds: []float64{m / 2, m, m * 1.5},
			})
		}
		texts := plotted(t, o)
		for i, median := range strings.Split(want, ", ") {
			if at := slices.Index(texts, fmt.Sprint("we & co ", i)); at < 0 || texts[at+1] != median {
				t.Errorf("subject %d is not beside %q in %q", i, median, texts)
			}
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
	o.Verdicts = []Verdict{{Ours: o.Series[0].side(), Target: AtMost(0).InEveryRound().String()}, {}, {Ours: o.Series[2].side(), Target: AtMost(6).String()}}
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
