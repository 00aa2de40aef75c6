package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	minute := func(trial.Scale) time.Duration { return time.Minute }
	rows := []trial.Row{{Number: "B1", What: "one", Once: true, Estimate: minute}, {Number: "B2", What: "two", Once: true, Estimate: minute}}
	var out strings.Builder
	p := newProgress(&out, rows, trial.Scale{})
	p.begin()
	p.began = p.began.Add(-70 * time.Second)
	p.begin()
	const want = "B1   row 1 of 2, 0:00 elapsed, about 2:00 left: one\nB2   row 2 of 2, 1:10 elapsed, about 1:00 left: two\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
	p.rowBegan = p.rowBegan.Add(-15 * time.Second)
	if got, want := p.times(time.Now()), "1:10 elapsed, about 0:45 left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}

	out.Reset()
	p.live("warm-up")
	if out.Len() > 0 {
		t.Errorf("a live line without a terminal: %q", &out)
	}
	p.terminal = true
	p.live(strings.Repeat("é", 100))
	line := []rune(strings.TrimPrefix(out.String(), clearLine))
	if len(line) != liveWidth || line[liveWidth-1] != '…' {
		t.Errorf("%d characters: %q", len(line), &out)
	}
}

// TestAnInterruptWaitsForNothing interrupts something that never ends.
func TestAnInterruptWaitsForNothing(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := newProgress(&out, []trial.Row{{Number: "B1"}}, trial.Scale{})
	p.terminal = true
	p.begin()
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	defer close(end)
	step := func() string {
		cancel()
		return "the first step"
	}
	if err := p.await(ctx, step, func() error { <-end; return nil }); !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "the first step") || !strings.HasSuffix(out.String(), clearLine) {
		t.Errorf("got %q", &out)
	}
	// A turn that the interrupt breaks counts as interrupted.
	if err := p.await(ctx, step, func() error { return errors.New("broken") }); !errors.Is(err, errInterrupted) {
		t.Errorf("got %v", err)
	}
}
