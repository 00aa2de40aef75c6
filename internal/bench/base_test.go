package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// TestAnotherVersionIsAPeer builds this version as another one.
func TestAnotherVersionIsAPeer(t *testing.T) {
	t.Parallel()
	path, err := resultsPath()
	if err != nil {
		t.Fatal(err)
	}
	tree := strings.TrimSuffix(path, filepath.FromSlash(resultsFile))
	var out strings.Builder
	status, err := run(t.Context(), []string{"-short", "-row", "B1", "-base", tree}, &out, io.Discard)
	if status != 0 || err != nil {
		t.Fatalf("status %d, %v\n%s", status, err, &out)
	}
	for _, want := range []string{"pglock, base peer pair p50", "B1 pair p50 to that of the base"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("there is no %q in\n%s", want, &out)
		}
	}
	if _, err := buildBase(t.Context(), "no-such-version"); err == nil || !strings.Contains(err.Error(), "no-such-version") {
		t.Errorf("got %v", err)
	}
}

func TestEachTargetOfARowIsComparedWithTheBase(t *testing.T) {
	t.Parallel()
	ours := func(subject, figure string) trial.Ref { return trial.Ref{Subject: subject, Figure: figure} }
	row := withBase(trial.Row{
		Number:   "B1",
		Subjects: []trial.Subject{{Name: "few"}, {Name: "many"}, {Name: "floor"}},
		Targets: []trial.Target{
			{Ours: ours("few", "p50"), Rule: trial.AtMost(1)},
			{Ours: ours("many", "p50"), Rule: trial.AtMost(1)},
			{Ours: ours("few", "p50"), Against: trial.Ref{Subject: "floor", Figure: "p50"}, Rule: trial.AtMost(1)},
			{Ours: ours("few", "WAL"), Rule: trial.AtMost(0).InEveryRound()},
		},
	}, "", "")
	var subjects, targets []string
	for _, s := range row.Subjects {
		if remote := s.Name != "floor"; remote != (s.Open != nil) {
			t.Errorf("%s is measured in a process of its own: %t, want %t", s.Name, s.Open != nil, remote)
		}
		subjects = append(subjects, s.Name)
	}
	for _, target := range row.Targets[4:] {
		targets = append(targets, target.Ours.Subject+" "+target.What+" "+target.Against.Subject)
	}
	if got, want := strings.Join(subjects, "; "), "few; many; floor; few, base; many, base"; got != want {
		t.Errorf("subjects %q, want %q", got, want)
	}
	if got, want := strings.Join(targets, "; "), "few p50 to that of the base few, base; many p50 to that of the base many, base"; got != want {
		t.Errorf("targets %q, want %q", got, want)
	}
}
