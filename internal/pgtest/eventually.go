package pgtest

import (
	"testing"
	"time"
)

// Eventually returns when cond does. If that takes longer than within, the test fails at once and names what it
// waited for. It must be called by the test's own goroutine.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if cond() {
			return
		}
		select {
		case <-look.C:
		case <-deadline.C:
			if !cond() { // a slow machine may have let both pass at once
				tb.Fatalf("not within %v: %s", within, what)
			}
			return
		}
	}
}
