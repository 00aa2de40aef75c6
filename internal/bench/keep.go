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

// keepable returns an error if the results can't be kept. It is called before anything is measured.
func keepable(c command) error {
	if !c.keeps() {
		return nil
	}
	path, err := resultsPath()
	if err == nil {
		_, err = trial.ReadResults(path)
	}
	return err
}

// keep writes the results into the working tree. A run of some rows replaces only these.
func keep(c command, results trial.Results) error {
	if !c.keeps() {
		return nil
	}
	path, err := resultsPath()
	if err != nil {
		return err
	}
	return keepIn(path, results, c.rows != "")
}

// resultsPath asks the go command for the main module's directory, which this module's go.mod names.
func resultsPath() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/pglock/pglock-go").Output()
	if err != nil {
		return "", errors.New("bench: the main module is not found: run it in internal/bench")
	}
	return filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(resultsFile)), nil
}

// keepIn writes the results to a file, with a plot per row beside it. Some rows replace only themselves.
func keepIn(path string, results trial.Results, some bool) error {
	if some {
		kept, err := trial.ReadResults(path)
		if err != nil {
			return err
		}
		results = kept.With(results)
	}
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
