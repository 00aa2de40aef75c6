package trial

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestResultsKeepTheirNames holds the names of the fields, which later runs are
// compared by.
func TestResultsKeepTheirNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "results.json")
	r := Results{Conditions: measuredAt(3, 2), Rows: []*Outcome{judged(t)}}
	for range 2 { // the second replaces the first
		if err := r.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Time    string         `json:"time"`
		Machine map[string]any `json:"machine"`
		Rows    []struct {
			Row     string           `json:"row"`
			Figures []map[string]any `json:"figures"`
			Targets []map[string]any `json:"targets"`
			Missing []map[string]any `json:"missing"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	row := file.Rows[0]
	for name, has := range map[string]bool{
		"time":            file.Time == "2026-01-02T03:00:00Z",
		"machine.cores":   file.Machine["cores"] == 2.0,
		"row":             row.Row == "B0",
		"figures.median":  row.Figures[0]["median"] == 31.0,
		"figures.rounds":  len(row.Figures[0]["rounds"].([]any)) == 3,
		"targets.status":  row.Targets[0]["status"] == "PASS",
		"targets.target":  row.Targets[0]["target"] == "≤ 4" && row.Targets[3]["target"] == "≤ 31 in every round",
		"targets.ratio":   row.Targets[0]["ratio"].(map[string]any)["median"] == 3.1,
		"targets.missing": row.Targets[2]["missing"].([]any)[0] == "redis",
		"missing.subject": row.Missing[0]["subject"] == "redis",
	} {
		if !has {
			t.Errorf("%s is not there, or has another value:\n%s", name, text)
		}
	}
}

// measuredAt returns conditions with a distinct hour and number of cores.
func measuredAt(hour, cores int) *Conditions {
	return &Conditions{Time: time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC), Machine: Machine{Cores: cores}, Rounds: 3, Turns: 1}
}

func TestLaterRowsReplaceEarlierOnes(t *testing.T) {
	t.Parallel()
	row := func(number, what string) *Outcome { return &Outcome{Number: number, What: what} }
	whole := Results{Conditions: measuredAt(1, 2), Rows: []*Outcome{row("B1", "old"), row("B2", "old"), row("B10", "old")}}
	merged := whole.With(Results{Conditions: measuredAt(2, 4), Rows: []*Outcome{row("F1", "new"), row("B2", "new")}})
	newest := Results{Conditions: measuredAt(3, 8), Rows: []*Outcome{row("B2", "newest")}}
	merged = merged.With(newest)

	path := filepath.Join(t.TempDir(), "results.json")
	if err := merged.Write(path); err != nil {
		t.Fatal(err)
	}
	r, err := ReadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range r.Rows {
		c := o.Measured
		if c == nil {
			c = r.Conditions
		}
		got = append(got, fmt.Sprintf("%s %s at %d on %d", o.Number, o.What, c.Time.Hour(), c.Machine.Cores))
	}
	want := []string{"B1 old at 1 on 2", "B2 newest at 3 on 8", "B10 old at 1 on 2", "F1 new at 2 on 4"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, o := range []*Outcome{whole.Rows[1], newest.Rows[0]} {
		if o.Measured != nil {
			t.Errorf("what was put together has changed: %+v", o)
		}
	}

	all := Results{Conditions: measuredAt(4, 2), Rows: []*Outcome{row("F1", ""), row("B1", ""), row("B2", ""), row("B10", "")}}
	if r := r.With(all); r.Conditions != nil || len(r.Rows) != 4 {
		t.Errorf("each row tells its own conditions, and yet there are others: %+v", r)
	}
}

func TestTheSameResultsMakeTheSameText(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	o := judged(t)
	o.Number, o.Growth = "B2", &Growth{With: "names", Figures: []string{"f"}}
	o.Series[0].Size = 1000
	r := Results{}.With(Results{Conditions: measuredAt(1, 2), Rows: []*Outcome{o, {Number: "B1"}}})
	if err := r.Write(first); err != nil {
		t.Fatal(err)
	}
	again, err := ReadResults(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(second); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(first)
	b, _ := os.ReadFile(second)
	if string(a) != string(b) {
		t.Errorf("written\n%s\nread and written again\n%s", a, b)
	}
	if line := `"rounds": [30, 31, 32]`; !strings.Contains(string(a), line) {
		t.Errorf("no line %s in\n%s", line, a)
	}
}

func TestResultsThatAreNotThereAndThatAreBroken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	if r, err := ReadResults(path); err != nil || len(r.Rows) != 0 {
		t.Errorf("no file: %+v, %v", r, err)
	}
	for _, text := range []string{"{", `{"rows": [{"row": "B1", "targets": [{"target": "fast"}]}]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadResults(path); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}
