package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// TestSomeRowsAreKeptBesideTheOthers keeps all rows, then one of them and a new one, then those of a busy
// machine, then all again.
func TestSomeRowsAreKeptBesideTheOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench", "results.json")
	results := func(what string, numbers ...string) trial.Results {
		r := trial.Results{Conditions: &trial.Conditions{Rounds: 1}}
		for _, number := range numbers {
			r.Rows = append(r.Rows, &trial.Outcome{Number: number, What: what, Series: []*trial.Series{
				{Subject: "pglock", Role: trial.Ours, Figure: "gap", Unit: trial.Micros, Median: 1, Rounds: []float64{1}},
			}})
		}
		return r
	}
	busy := func(r trial.Results) trial.Results {
		for _, row := range r.Rows {
			row.Busy = true
		}
		return r
	}
	for _, c := range []struct {
		results trial.Results
		some    bool
		busy    bool
		want    []string
	}{
		{results("first", "B1", "B3"), false, false, []string{"B1 first", "B3 first"}},
		{results("second", "B3", "B2"), true, false, []string{"B1 first", "B2 second", "B3 second"}},
		{busy(results("fourth", "B1", "B2")), false, true, []string{"B1 first", "B1 fourth busy", "B2 second", "B2 fourth busy", "B3 second"}},
		{busy(results("fifth", "B2")), true, true, []string{"B1 first", "B1 fourth busy", "B2 second", "B2 fifth busy", "B3 second"}},
		{results("third", "B1"), false, false, []string{"B1 third", "B1 fourth busy", "B2 fifth busy"}},
		{busy(results("sixth", "B1")), false, true, []string{"B1 third", "B1 sixth busy"}},
	} {
		if err := keepIn(path, c.results, c.some, c.busy); err != nil {
			t.Fatal(err)
		}
		kept, err := trial.ReadResults(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range kept.Rows {
			name := row.Number + " " + row.What
			if row.Busy {
				name += " busy"
			}
			got = append(got, name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("kept %q, want %q", got, c.want)
		}
	}
	for _, plot := range []string{"b1.svg", "b2.svg", "b3.svg"} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), plot)); err != nil {
			t.Error(err)
		}
	}
}

// TestTheKeptResultsCanBeReadAndDrawn is about the file in the tree.
func TestTheKeptResultsCanBeReadAndDrawn(t *testing.T) {
	t.Parallel()
	path, err := resultsPath()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := trial.ReadResults(path)
	if err != nil || len(kept.Rows) == 0 {
		t.Fatalf("%d rows, %v", len(kept.Rows), err)
	}
	dir := t.TempDir()
	for _, row := range kept.Of(false).Rows {
		if err := row.WritePlot(dir); err != nil {
			t.Error(err)
		}
	}
	if plots, _ := filepath.Glob(filepath.Join(dir, "*.svg")); len(plots) != len(kept.Of(false).Rows) {
		t.Errorf("%d plots of %d rows", len(plots), len(kept.Rows))
	}
}

func TestOnlyWhatWasAskedForIsKept(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"": true, "-keep": true, "-row B1": false, "-row B1 -keep": true, "-short": false, "-short -row B1": false,
		"-quick": false, "-base HEAD": false, "-busy": true, "-busy -row B1": false,
	} {
		c, err := parse(strings.Fields(args), io.Discard)
		if err != nil || c.keeps() != want {
			t.Errorf("%q is kept: %v, %v", args, c.keeps(), err)
		}
	}
}
