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

// TestRowsAreKeptBesideTheOthers, also those of a whole run, which leaves the long ones out. Only what is no row any more goes.
func TestRowsAreKeptBesideTheOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench", "results.json")
	for _, c := range []struct {
		what    string
		numbers []string
		want    []string
	}{
		{"first", []string{"B1", "B10", "B0"}, []string{"B1 first", "B10 first"}},
		{"second", []string{"B10", "B2"}, []string{"B1 first", "B2 second", "B10 second"}},
		{"third", []string{"B1"}, []string{"B1 third", "B2 second", "B10 second"}},
	} {
		var results trial.Results
		for _, number := range c.numbers {
			results.Rows = append(results.Rows, &trial.Outcome{Number: number, What: c.what, Series: []*trial.Series{
				{Subject: "pglock", Role: trial.Ours, Figure: "gap", Unit: trial.Micros, Median: 1, Rounds: []float64{1}},
			}})
		}
		if err := keepIn(path, results); err != nil {
			t.Fatal(err)
		}
		kept, err := trial.ReadResults(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range kept.Rows {
			got = append(got, row.Number+" "+row.What)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("kept %q, want %q", got, c.want)
		}
	}
	for _, plot := range []string{"b1.svg", "b2.svg", "b10.svg"} {
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
	for _, row := range kept.Rows {
		if err := row.WritePlot(dir); err != nil || row.Measured == nil {
			t.Errorf("%s: measured %+v, %v", row.Number, row.Measured, err)
		}
	}
	if plots, _ := filepath.Glob(filepath.Join(dir, "*.svg")); len(plots) != len(kept.Rows) {
		t.Errorf("%d plots of %d rows", len(plots), len(kept.Rows))
	}
}

func TestOnlyWhatWasAskedForIsKept(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"": true, "-keep": true, "-row B1": false, "-row B1 -keep": true, "-short": false, "-short -row B1": false,
		"-quick": false, "-base HEAD": false,
	} {
		c, err := parse(strings.Fields(args), io.Discard)
		path, err2 := c.keptIn()
		if err != nil || err2 != nil || (path != "") != want {
			t.Errorf("%q is kept in %q, %v, %v", args, path, err, err2)
		}
	}
}
