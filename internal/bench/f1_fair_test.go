package main

import (
	"slices"
	"testing"
	"time"
)

// TestOnlyGrantsWithinTheTimeAreCounted has two who share the time equally, and a third who got the lock while the others
// were still connecting, and once more from the line that was left when time was up.
func TestOnlyGrantsWithinTheTimeAreCounted(t *testing.T) {
	t.Parallel()
	at := func(seconds ...float64) (held []holding) {
		for _, s := range seconds {
			held = append(held, holding{Acquired: int64(s * 1e9), Freed: int64((s + 0.05) * 1e9)})
		}
		return held
	}
	byMember := [][]holding{
		at(10.0, 10.3, 10.6, 20.1),
		at(10.1, 10.4, 10.7, 10.8, 20.2),
		at(9.0, 9.5, 9.9, 10.2, 20.0),
	}
	s := shared(byMember, time.Unix(10, 0), time.Unix(20, 0))
	if want := []int{3, 4, 1}; !slices.Equal(s.counts, want) {
		t.Errorf("counts %v, want %v", s.counts, want)
	}
	if want := 6; s.passes != want { // of eight grants the last went to the one who had it
		t.Errorf("%d passes, want %d", s.passes, want)
	}
	if got := s.fairness(); got != 0.25 {
		t.Errorf("fairness %v", got)
	}
	if got := shared([][]holding{nil, nil}, time.Unix(0, 0), time.Unix(1, 0)); got.fairness() != 0 || got.passes != 0 {
		t.Errorf("of nothing: %+v, fairness %v", got, got.fairness())
	}
}

func TestTTLsAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	if got, want := spread(10*time.Second, 60*time.Second, 6), []time.Duration{10e9, 20e9, 30e9, 40e9, 50e9, 60e9}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := spread(leastTTL, mostTTL, manyLeases); got[0] != leastTTL || got[manyLeases-1] != mostTTL {
		t.Errorf("from %v to %v", got[0], got[manyLeases-1])
	}
	if got := spread(leaseTTL, leaseTTL, 3); got[0] != leaseTTL || got[2] != leaseTTL {
		t.Errorf("the same for all: %v", got)
	}
}
