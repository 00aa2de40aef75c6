package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// resultsFile has the figures, relative to the main module.
const resultsFile = "testdata/bench/results.json"

// complete reports whether the figures are worth keeping.
func (c command) complete() bool { return !c.scale.Short && !c.scale.Quick && c.base == "" }

// keeps reports whether the results are kept: always after a complete run of all rows, and on request
// after one of some.
func (c command) keeps() bool { return c.complete() && (c.rows == "" || c.keep) }

// keep writes the results into the working tree. A run of some rows replaces only these.
func keep(c command, results trial.Results) error {
	if !c.keeps() {
		return nil
	}
	path, err := resultsPath()
	if err != nil {
		return err
	}
	return keepIn(path, results, c.rows != "", c.scale.Busy)
}

// keepable returns an error if the results can't be kept. It is called before anything is measured.
func keepable(c command) error {
	if !c.keeps() {
		return nil
	}
	path, err := resultsPath()
	if err != nil {
		return err
	}
	_, err = trial.ReadResults(path)
	return err
}

// resultsPath asks the go command for the main module's directory, which this module's go.mod names.
func resultsPath() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/pglock/pglock-go").Output()
	if err != nil {
		return "", errors.New("bench: the main module is not found: run it in internal/bench")
	}
	return filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(resultsFile)), nil
}

// keepIn merges the results into a file, with a plot per row beside it. All rows replace those that were
// measured on a machine that was as busy, and some rows only themselves.
func keepIn(path string, results trial.Results, some, busy bool) error {
	kept, err := trial.ReadResults(path)
	if err != nil {
		return err
	}
	if !some {
		kept = kept.Of(!busy)
	}
	results = kept.With(results)
	if err := results.Write(path); err != nil {
		return err
	}
	for _, row := range results.Of(false).Rows {
		if err := row.WritePlot(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return nil
}
