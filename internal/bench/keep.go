package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// resultsFile is where the figures of a full run are kept, below the main module.
const resultsFile = "testdata/bench/results.json"

// mainModule matches the go.mod of the module that this one is nested in.
var mainModule = regexp.MustCompile(`(?m)^module github\.com/pglock/pglock-go$`)

// keep writes the results, and a plot of each row, into the tree that the command is run in.
func keep(results trial.Results) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	path := filepath.Join(root, filepath.FromSlash(resultsFile))
	for _, row := range results.Rows {
		if err := row.WritePlot(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return results.Write(path)
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
