package trial

import "time"

// Rate is how often something happened in one round. For one goroutine.
type Rate struct {
	count int
	took  time.Duration
}

// Add counts what a turn did, and how long that took.
func (r *Rate) Add(count int, took time.Duration) {
	r.count += count
	r.took += took
}

// Figure returns how often it happened in a second, and forgets it.
func (r *Rate) Figure(name string) Figure {
	f := Figure{Name: name, Unit: PerSecond, Value: float64(r.count) / r.took.Seconds()}
	*r = Rate{}
	return f
}
