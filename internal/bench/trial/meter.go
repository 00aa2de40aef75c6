package trial

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// latencyRoom is the initial capacity for the latencies of a round.
const latencyRoom = 1 << 16

// Latencies are the latencies of one operation in one round. The memory is reused in later rounds, so
// recording allocates nothing. One goroutine uses it.
type Latencies struct{ all []time.Duration }

// NewLatencies returns an empty recorder.
func NewLatencies() *Latencies { return &Latencies{make([]time.Duration, 0, latencyRoom)} }

// Record adds a latency.
func (l *Latencies) Record(d time.Duration) { l.all = append(l.all, d) }

// Figures returns the median and the 99th percentile under the operation's name, and clears the
// recorder.
func (l *Latencies) Figures(name string) []Figure {
	slices.Sort(l.all)
	defer func() { l.all = l.all[:0] }()
	return []Figure{
		{Name: name + " p50", Unit: Micros, Value: l.quantile(0.50)},
		{Name: name + " p99", Unit: Micros, Value: l.quantile(0.99)},
	}
}

// quantile returns the smallest latency, in microseconds, that at least a share q of the sorted list
// does not exceed.
func (l *Latencies) quantile(q float64) float64 {
	if len(l.all) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(q * float64(len(l.all))))
	return float64(l.all[max(rank, 1)-1]) / float64(time.Microsecond)
}

// PerTime returns how many operations there were in a second.
func PerTime(name string, count int, took time.Duration) Figure {
	return Figure{Name: name, Unit: PerSecond, Value: float64(count) / took.Seconds()}
}

// Crowd repeats op in n goroutines for lead and then for d, with the number of the goroutine. It counts
// the calls that end in the second part, in which all goroutines run from the beginning to the end. The
// first error stops all of them.
func Crowd(ctx context.Context, n int, lead, d time.Duration, op func(ctx context.Context, i int) error) (count int, err error) {
	from := time.Now().Add(lead)
	to := from.Add(d)
	var total atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for i := range n {
		all.Go(func() error {
			count := 0
			for now := time.Now(); now.Before(to); {
				if err := op(ctx, i); err != nil {
					return err
				}
				now = time.Now()
				if !now.Before(from) && now.Before(to) {
					count++
				}
			}
			total.Add(int64(count))
			return nil
		})
	}
	err = all.Wait()
	return int(total.Load()), err
}
