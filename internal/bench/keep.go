package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// resultsFile is where figures are kept, below the main module.
const resultsFile = "testdata/bench/results.json"

// mainModule matches the go.mod of the module that this one is nested in.
var mainModule = regexp.MustCompile(`(?m)^module github\.com/pglock/pglock-go$`)

// keeps reports whether the results are kept: those of all rows always, those of some if that was asked for, and those of
// a short run never.
func (c command) keeps() bool { return !c.scale.Short && (c.rows == "" || c.keep) }

// keep writes the results into the tree that the command is run in. Those of all rows replace what was kept, those of
// some replace the same rows.
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

// keepable returns an error if results could not be kept, while nothing has been measured yet.
func keepable(c command) error {
	if !c.keeps() {
		return nil
	}
	path, err := resultsPath()
	if err != nil {
		return err
	}
	if c.rows != "" { // they are put into it
		_, err = trial.ReadResults(path)
	}
	return err
}

func resultsPath() (string, error) {
	root, err := moduleRoot()
	return filepath.Join(root, filepath.FromSlash(resultsFile)), err
}

// keepIn writes the results to a file, or puts them into it, with a plot of each row beside it.
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

// moduleRoot returns the directory of the main module, from the working directory
// upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && mainModule.Match(text) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("bench: not inside the main module's tree: run it in internal/bench")
		}
		dir = parent
	}
}
