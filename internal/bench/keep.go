package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// resultsFile has the figures, relative to the main module.
const resultsFile = "testdata/bench/results.json"

// complete reports whether the figures are worth keeping.
func (c command) complete() bool { return !c.scale.Short && !c.scale.Quick && c.base == "" }

// keptIn returns the file that the results are kept in: always after a complete run of all rows, and on
// request after one of some. If nothing is kept, it is "". It is called before anything is measured, so a
// file that can't be read costs no run.
func (c command) keptIn() (path string, err error) {
	if !c.complete() || c.rows != "" && !c.keep {
		return "", nil
	}
	if path, err = resultsPath(); err == nil {
		_, err = trial.ReadResults(path)
	}
	return path, err
}

// resultsPath asks the go command for the main module's directory, which this module's go.mod names.
func resultsPath() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/pglock/pglock-go").Output()
	if err != nil {
		return "", errors.New("bench: the main module is not found: run it in internal/bench")
	}
	return filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(resultsFile)), nil
}

// keepIn writes the results to a file, with a plot per row beside it, in the place of earlier ones of these rows. Rows
// that exist no more are dropped.
func keepIn(path string, results trial.Results) error {
	kept, err := trial.ReadResults(path)
	if err != nil {
		return err
	}
	results = kept.With(results)
	results.Rows = slices.DeleteFunc(results.Rows, func(o *trial.Outcome) bool {
		return !slices.ContainsFunc(rows(), func(r trial.Row) bool { return r.Number == o.Number })
	})
	if err := results.Write(path); err != nil {
		return err
	}
	for _, row := range results.Rows {
		if err := row.WritePlot(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return nil
}
