package trial

import (
	"fmt"
	"math"
	"slices"
)

// Figure is one number of a round.
type Figure struct {
	Name  string
	Unit  Unit
	Value float64
}

// Unit is the unit of a figure.
type Unit string

// The units.
const (
	Micros    Unit = "us"
	PerSecond Unit = "1/s"
	Bytes     Unit = "bytes"
	Times     Unit = "x"  // a ratio
	Count     Unit = "of" // so many
	Percent   Unit = "%"
)

// format formats a value for people.
func (u Unit) format(v float64) string {
	switch {
	case u == Micros && v < 10:
		return fmt.Sprintf("%.1f us", v)
	case u == PerSecond:
		return fmt.Sprintf("%.0f/s", v)
	case u == Times:
		return fmt.Sprintf("%.2f", v)
	case u == Count:
		return fmt.Sprintf("%.4g", v)
	case u == Percent:
		return fmt.Sprintf("%.1f %%", v)
	case u == Bytes && v >= 1e6:
		return fmt.Sprintf("%.1f MB", v/1e6)
	case u == Bytes && v == math.Trunc(v):
		return fmt.Sprintf("%.0f B", v)
	case u == Bytes:
		return fmt.Sprintf("%.1f B", v)
	}
	return fmt.Sprintf("%.0f %s", v, u)
}

// Series is one figure of one subject, over all rounds.
type Series struct {
	Subject string    `json:"subject"`
	Role    Role      `json:"role"`
	Figure  string    `json:"figure"`
	Unit    Unit      `json:"unit"`
	Median  float64   `json:"median"`
	Rounds  []float64 `json:"rounds"`

	Unsteady bool `json:"unsteady,omitempty"` // the rounds differ too much to quote the median
}

// mostSpread is the ratio of the largest to the smallest round up to which a figure is steady.
const mostSpread = 1.5

// steady reports whether the rounds are close enough to each other that their median tells something.
func steady(rounds []float64) bool {
	least, most := slices.Min(rounds), slices.Max(rounds)
	return least == most || most <= mostSpread*least
}

// median returns the middle value, or the mean of the two middle ones. Without values it is NaN.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
