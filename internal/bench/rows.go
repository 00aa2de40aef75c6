//go:build !base

package main

import "github.com/pglock/pglock-go/internal/bench/trial"

// rows returns all rows.
func rows() []trial.Row {
	return []trial.Row{
		pairRow(), distinctRow(), hotRow(), tryRow(), leasesRow(), millionRow(), guardRow(), txRow(),
		growthRow(), waitersRow(), observerRow(), permitsRow(), electionRow(), besideRow(), waitingRow(), besideCommitsRow(), newRow(), grownRow(), onceRow(), fairRow(),
	}
}
