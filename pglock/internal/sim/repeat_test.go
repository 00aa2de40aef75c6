//go:build !race

// The race detector lets goroutines run in a random order.

package sim

import (
	"slices"
	"strings"
	"testing"
)

// TestRepeats: a world that runs again does the same at the same time. At one instant, the order of
// what happens is another one, because timers are in a random order then.
func TestRepeats(t *testing.T) {
	same, runs := uint64(0), min(worlds, 40)
	for seed := range runs {
		p := newPlan(seed)
		a, b := sorted(run(t, p, true, everything)), sorted(run(t, p, true, everything))
		for i, line := range a {
			if i == len(b) || line != b[i] {
				t.Logf("seed %d, line %d of %d, differs:\n%s\n%s", seed, i, len(a), strings.Join(a[max(i-1, 0):i+1], "\n"), b[min(i, len(b)-1)])
				break
			}
		}
		if slices.Equal(a, b) {
			same++
		}
	}
	if same < runs*8/10 {
		t.Errorf("%d of %d worlds repeat", same, runs)
	}
}

// sorted returns the trace of a run, with the lines of one instant in order, and without which error
// of several Close returns.
func sorted(r Result) (all []string) {
	at := func(line string) string { return strings.Fields(line)[0] }
	began := 0
	for i, line := range r.Trace {
		line, _, _ = strings.Cut(line, ": closed: ")
		if all = append(all, line); i > 0 && at(line) != at(all[began]) {
			slices.Sort(all[began:i])
			began = i
		}
	}
	slices.Sort(all[began:])
	return all
}
