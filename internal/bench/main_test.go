package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// mainVariable makes the tests' program the command.
const mainVariable = "PGLOCK_BENCH_TEST_MAIN"

func TestMain(m *testing.M) {
	testserver.Hook()
	workerHook()
	if os.Getenv(mainVariable) != "" {
		main()
	}
	pgtest.Main(m)
}

// TestShortRunsEveryRow is the whole command, on real servers.
func TestShortRunsEveryRow(t *testing.T) {
	t.Parallel()
	path, err := resultsPath()
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	var out strings.Builder
	status, err := run(t.Context(), []string{"-short"}, &out, io.Discard)
	if status != 0 || err != nil {
		t.Fatalf("status %d, %v\n%s", status, err, &out)
	}
	for _, row := range rows() {
		if !strings.Contains(out.String(), "\n"+row.Number+" ") {
			t.Errorf("no line about %s", row.Number)
		}
	}
	for _, verdict := range []trial.Status{trial.Pass, trial.Miss} {
		if slices.Contains(strings.Fields(out.String()), string(verdict)) { // a word: MISSING is none
			t.Errorf("a short run was judged:\n%s", &out)
		}
	}
	after, _ := os.Stat(path)
	if (before == nil) != (after == nil) || before != nil && !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("a short run has written %s", resultsFile)
	}
}

func TestRowsAreChosenByNumber(t *testing.T) {
	t.Parallel()
	all := []trial.Row{{Number: "B1"}, {Number: "B4"}, {Number: "B6"}, {Number: "B7", Long: true}}
	for numbers, want := range map[string]string{"": "B1B4B6", "B4": "B4", "b6,B1": "B6B1", "B7": "B7"} {
		chosen, err := choose(all, numbers, false)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, r := range chosen {
			got += r.Number
		}
		if got != want {
			t.Errorf("-row %q: %s, want %s", numbers, got, want)
		}
	}
	if _, err := choose(all, "B1,B5", false); err == nil || !strings.Contains(err.Error(), `"B5"`) {
		t.Errorf("a row that isn't there: %v", err)
	}
}

func TestAMissMakesTheStatus(t *testing.T) {
	t.Parallel()
	results := func(statuses ...trial.Status) trial.Results {
		o := &trial.Outcome{Number: "B1"}
		for _, s := range statuses {
			o.Verdicts = append(o.Verdicts, trial.Verdict{
				What: "speed", Status: s, Target: trial.AtMost(2).String(), Ours: &trial.Side{Subject: "pglock"}, Ratio: &trial.Spread{Median: 1.5, Min: 1.4, Max: 1.6},
			})
		}
		return trial.Results{Rows: []*trial.Outcome{o}}
	}
	var out strings.Builder
	if got := sum(results(trial.Pass, trial.Missing, trial.NotJudged), &out); got != 0 || out.String() != "B1 meets its target ≤ 2: pglock 1.50 (1.40-1.60), speed\n" {
		t.Errorf("nothing missed: status %d, %q", got, &out)
	}
	if got := sum(results(trial.Pass, trial.Miss), &out); got != exitMissed || !strings.Contains(out.String(), "\nB1 misses its target ≤ 2: pglock 1.50 (1.40-1.60), speed\n") {
		t.Errorf("missed: status %d, %q", got, &out)
	}
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-rounds", "0"}, {"-long", "0s"}, {"B1"}, {"-short", "-keep"}, {"-quick", "-keep"}, {"-base", "HEAD", "-keep"}, {"-no-such-flag"}, {"-row", "B99"}} {
		var out strings.Builder
		if status, err := run(t.Context(), args, &out, io.Discard); status != exitBroken || err == nil {
			t.Errorf("%v: status %d, %v", args, status, err)
		}
	}
}

// TestAnInterruptWaitsForNothing interrupts something that never ends, and something that ends with an
// error then.
func TestAnInterruptWaitsForNothing(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	defer close(end)
	for _, what := range []func() error{
		func() error { <-end; return nil },
		func() error { return errors.New("broken") },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := await(ctx, func() error { cancel(); return what() }); !errors.Is(err, errInterrupted) {
			t.Errorf("got %v", err)
		}
	}
}
