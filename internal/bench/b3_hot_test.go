package main

import (
	"slices"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// TestOnlyGrantsWithinTheTimeAreCounted has two members that share the time equally, and a third one that
// got the lock while the others were still connecting, and once more from the queue that was left when
// time was up.
func TestOnlyGrantsWithinTheTimeAreCounted(t *testing.T) {
	t.Parallel()
	at := func(seconds ...float64) (held []holding) {
		for _, s := range seconds {
			held = append(held, holding{Acquired: int64(s * 1e9), Freed: int64((s + 0.05) * 1e9)})
		}
		return held
	}
	m := count([][]holding{
		at(10.0, 10.3, 10.6, 20.1),
		at(10.1, 10.4, 10.7, 10.8, 20.2),
		at(9.0, 9.5, 9.9, 10.2, 20.0),
	}, time.Unix(10, 0), time.Unix(20, 0))
	if want := []int{3, 4, 1}; !slices.Equal(m.counts, want) {
		t.Errorf("counts %v, want %v", m.counts, want)
	}
	if want := 6; m.passed != want { // of eight grants the last went to the one who had it
		t.Errorf("%d passed, want %d", m.passed, want)
	}
	if got := m.fairness(); got != 0.25 {
		t.Errorf("fairness %v", got)
	}
	if got := m.gaps.Figures("gap")[0]; got != (trial.Figure{Name: "gap p50", Unit: trial.Micros, Value: 50_000}) {
		t.Errorf("%+v", got)
	}
	if nobody := count([][]holding{nil, nil}, time.Unix(0, 0), time.Unix(1, 0)); nobody.passed != 0 || nobody.fairness() != 0 {
		t.Errorf("of nothing: %d passed, fairness %v", nobody.passed, nobody.fairness())
	}
}
