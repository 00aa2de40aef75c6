package trial

import (
	"math"
	"slices"
	"time"
)

// latencyRoom is how many latencies a round records before its list must grow.
const latencyRoom = 1 << 16

// Latencies are those of one operation in one round. Their room is kept from round to
// round, so that recording allocates nothing while it is measured. For one goroutine.
type Latencies struct{ all []time.Duration }

// NewLatencies returns room for a round's.
func NewLatencies() *Latencies { return &Latencies{make([]time.Duration, 0, latencyRoom)} }

// Record adds one.
func (l *Latencies) Record(d time.Duration) { l.all = append(l.all, d) }

// Figures returns the median and the 99th percentile of the operation of that name,
// and forgets what was recorded.
func (l *Latencies) Figures(name string) []Figure {
	slices.Sort(l.all)
	defer func() { l.all = l.all[:0] }()
	return []Figure{
		{Name: name + " p50", Unit: Micros, Value: l.quantile(0.50)},
		{Name: name + " p99", Unit: Micros, Value: l.quantile(0.99)},
	}
}

// quantile returns the smallest latency that a share q of them does not exceed, in
// microseconds. The list is sorted.
func (l *Latencies) quantile(q float64) float64 {
	if len(l.all) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(q * float64(len(l.all))))
	return float64(l.all[max(rank, 1)-1]) / float64(time.Microsecond)
}
