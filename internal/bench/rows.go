package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// rows are all of them, in the order of the design.
func rows() []trial.Row {
	return []trial.Row{pairRow(), distinctRow(), hotRow(), tryRow(), manyLeasesRow(), millionRow(), guardRow(), txRow(), growthRow(), waitersRow(), fairRow(), namesRow(), goroutinesRow()}
}

// choose returns the rows with those numbers, separated by commas; all without one.
func choose(all []trial.Row, numbers string) ([]trial.Row, error) {
	if numbers == "" {
		return all, nil
	}
	var chosen []trial.Row
	for number := range strings.SplitSeq(numbers, ",") {
		i := slices.IndexFunc(all, func(r trial.Row) bool { return strings.EqualFold(r.Number, number) })
		if i < 0 {
			return nil, fmt.Errorf("bench: no row %q", number)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
