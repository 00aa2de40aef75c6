//go:build base

package main

import "github.com/pglock/pglock-go/internal/bench/trial"

// rows returns baseRows. The files of some other rows are left out, because another version of the
// module may lack what they use.
func rows() []trial.Row {
	return []trial.Row{pairRow(), distinctRow(), hotRow(), tryRow(), guardRow(), txRow(), waitersRow(), newRow(), grownRow()}
}
