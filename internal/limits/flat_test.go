package limits

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// sample has what can leak, at a moment without work.
type sample struct {
	operations int64
	values     [figures]int64
	relations  string // the sizes of tables and indexes
}

// figure is something that can leak.
type figure int

const (
	goroutines  figure = iota
	heap               // bytes in use after a garbage collection
	connections        // to the database, except the test's own
	names              // rows of distributed_locks
	size               // bytes of all tables and their indexes, after VACUUM
	held               // live grants
	permits            // rows of lock_permits
	tickets            // rows of lock_waiters
	figures
)

var (
	figureNames = [figures]string{"goroutines", "heap", "connections", "names", "size", "held", "permits", "tickets"}

	// slack is how much a figure may grow without being a leak: this much, and a tenth. Grants and
	// permits must be 0 without work. The row of a queue stays for a second after its last waiter.
	slack = [figures]int64{goroutines: 10, heap: 512 << 10, connections: 5, names: 200, size: 128 << 10, tickets: 50}
)

func (f figure) String() string { return figureNames[f] }

// leaks returns the figures that grew: from the median of the second fifth of the samples to that of
// the last fifth. The first fifth is the warm-up: caches and connections.
func leaks(samples []sample) (grown []figure) {
	for f := range figures {
		early, late := ends(samples, f)
		allowed := early + slack[f] + early/10
		if slack[f] == 0 {
			allowed = 0
		}
		if late > allowed {
			grown = append(grown, f)
		}
	}
	return grown
}

// ends returns the medians of a figure in the second and the last fifth of the samples.
func ends(samples []sample, f figure) (early, late int64) {
	n := len(samples) / 5
	return median(samples[n:2*n], f), median(samples[len(samples)-n:], f)
}

func median(samples []sample, f figure) int64 {
	sorted := slices.SortedFunc(func(yield func(int64) bool) {
		for _, s := range samples {
			if !yield(s.values[f]) {
				return
			}
		}
	}, cmp.Compare)
	return sorted[len(sorted)/2]
}

// table shows the two ends of each figure, and its largest value.
func table(samples []sample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| figure | second fifth | last fifth | largest |\n|---|---|---|---|\n")
	for f := range figures {
		early, late := ends(samples, f)
		most := slices.MaxFunc(samples, func(a, b sample) int { return cmp.Compare(a.values[f], b.values[f]) }).values[f]
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", f, early, late, most)
	}
	for n := range 5 {
		s := samples[(n+1)*len(samples)/5-1]
		fmt.Fprintf(&b, "sizes after %d operations: %s\n", s.operations, s.relations)
	}
	return b.String()
}
