package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// baseRows are the rows that can be compared with another version of the module. A program that is built
// with the tag base has only these.
var baseRows = []string{"B1", "B2", "B3", "B4", "B7", "B8", "B10", "B17", "B18"}

// addBase adds the subjects of another version to the rows, with a line in the table for each figure
// that has a target. The other version measures with its own code of pglock, but with this code of the
// benchmark, in processes and on servers of its own. So do the subjects of this version that are compared:
// a version is as fast as itself only if both are measured in the same way.
func addBase(ctx context.Context, chosen []trial.Row, base string) ([]trial.Row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := buildBase(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("bench: -base %s: %w", base, err)
	}
	chosen = slices.Clone(chosen)
	for i, row := range chosen {
		if slices.Contains(baseRows, row.Number) {
			chosen[i] = withBase(row, self, program)
		}
	}
	return chosen, nil
}

func withBase(row trial.Row, self, program string) trial.Row {
	var compared []trial.Ref
	row.Subjects, row.Targets = slices.Clone(row.Subjects), slices.Clone(row.Targets)
	for _, target := range slices.Clone(row.Targets) {
		ours := target.Ours
		base := trial.Ref{Subject: ours.Subject + ", base", Figure: ours.Figure}
		if named := func(s trial.Subject) bool { return s.Name == base.Subject }; !slices.ContainsFunc(row.Subjects, named) {
			here := slices.IndexFunc(row.Subjects, func(s trial.Subject) bool { return s.Name == ours.Subject })
			row.Subjects[here].Open = openElsewhere(row.Number, ours.Subject, self)
			row.Subjects = append(row.Subjects, trial.Subject{Name: base.Subject, Role: trial.Peer, Open: openElsewhere(row.Number, ours.Subject, program)})
		}
		if slices.Contains(compared, ours) || target.Rule == trial.AtMost(0).InEveryRound() {
			continue
		}
		compared = append(compared, ours)
		row.Targets = append(row.Targets, trial.Target{What: ours.Figure + " to that of the base", Ours: ours, Against: base})
	}
	return row
}

// openElsewhere opens a subject in a process of its own, of this version or another one.
func openElsewhere(row, subject, program string) trial.Open {
	return func(_ context.Context, s *trial.Scope) (trial.Meter, error) {
		conn, err := startWorker(s, program)
		if err != nil {
			return nil, err
		}
		remote, err := trial.NewRemote(trial.Assignment{Row: row, Subject: subject, Scale: s.Scale}, conn)
		s.Defer(remote.Close)
		return remote, err
	}
}

// buildBase builds the benchmark with the packages of another version: a copy of its tree with the
// benchmark and the test server of this one. It returns the program, which lasts as long as this process.
func buildBase(ctx context.Context, base string) (program string, err error) {
	results, err := resultsPath()
	if err != nil {
		return "", err
	}
	here := strings.TrimSuffix(results, filepath.FromSlash(resultsFile))
	tree, err := testserver.Dir()
	if err != nil {
		return "", err
	}
	if info, failed := os.Stat(base); failed == nil && info.IsDir() {
		err = os.CopyFS(tree, os.DirFS(base))
	} else {
		err = runIn(ctx, here, "git", "archive", "--format=tar", "--output="+filepath.Join(tree, "base.tar"), base)
		if err == nil {
			err = runIn(ctx, tree, "tar", "-xf", "base.tar")
		}
	}
	for _, ours := range []string{"internal/bench", "internal/testserver"} {
		ours = filepath.FromSlash(ours)
		err = errors.Join(err, os.RemoveAll(filepath.Join(tree, ours)))
		if err == nil {
			err = os.CopyFS(filepath.Join(tree, ours), os.DirFS(filepath.Join(here, ours)))
		}
	}
	if err != nil {
		return "", fmt.Errorf("version %q: %w", base, err)
	}
	program = filepath.Join(tree, "base")
	return program, runIn(ctx, filepath.Join(tree, "internal", "bench"), "go", "build", "-mod=mod", "-buildvcs=false", "-tags=base", "-o", program, ".")
}

func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // a workspace has no -mod=mod
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
