// Package random draws the times that spread what processes would do together.
package random

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var source atomic.Pointer[func(n int64) int64]

// N returns a random duration of at least 0 and less than d, which must be positive.
func N(d time.Duration) time.Duration {
	if draw := source.Load(); draw != nil {
		return time.Duration((*draw)(int64(d)))
	}
	return rand.N(d)
}

// Replace makes draw the source of all numbers until restore is called, so that a simulation can
// be repeated. draw returns a number of at least 0 and less than n.
func Replace(draw func(n int64) int64) (restore func()) {
	before := source.Swap(&draw)
	return func() { source.Store(before) }
}
