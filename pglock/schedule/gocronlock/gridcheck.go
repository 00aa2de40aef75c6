package gocronlock

import (
	"fmt"
	"sync"
	"time"
)

// gridCheck finds out from the calls of one job whether its ticks fit the locker's grid. gocron
// gives a Locker only the job's name, not its interval.
type gridCheck struct {
	mu    sync.Mutex
	calls []time.Time // the first ones, by the job's clock, up to sampleSize
}

const (
	sampleSize = 3 // calls that the check compares

	// maxLate is how far off the grid a call may be because its timer fired late. The check takes
	// the smallest distance of sampleSize calls.
	maxLate = 250 * time.Millisecond
)

// problem returns why the job does not fit the grid, or "" if it does. It returns a problem at the
// call that completes the sample, and "" at all other calls.
func (g *gridCheck) problem(now time.Time, grid time.Duration) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.calls) == sampleSize {
		return ""
	}
	now = now.Round(0)
	if n := len(g.calls); n > 0 && !now.After(g.calls[n-1]) {
		g.calls = nil // the clock was set back
	}
	if g.calls = append(g.calls, now); len(g.calls) < sampleSize {
		return ""
	}
	shortest, longest, off := time.Duration(1<<63-1), time.Duration(0), grid
	for i, at := range g.calls {
		sinceGrid := at.Sub(at.Truncate(grid))
		off = min(off, sinceGrid, grid-sinceGrid)
		if i > 0 {
			gap := at.Sub(g.calls[i-1])
			shortest, longest = min(shortest, gap), max(longest, gap)
		}
	}
	switch {
	case longest < grid*3/4:
		return fmt.Sprintf("the job is due every %v, more often than the grid: it runs only once in each %v",
			longest.Round(time.Millisecond), grid)
	case shortest > grid*5/4 && off > min(grid/10, maxLate):
		return fmt.Sprintf("the job is due every %v, %v off the grid: it runs once in each scheduler that started at another time: use NewJobLocker",
			shortest.Round(time.Millisecond), off.Round(time.Millisecond))
	}
	return ""
}
