package trial

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// scale maps values to places along an axis.
type scale struct {
	low, high float64 // of the values, or of their decimal logarithms
	log       bool
	from, to  float64 // in pixels
}

// logFrom is the quotient of the greatest and the least value from which on a scale is logarithmic: on a linear one the
// least could not be told from nothing.
const logFrom = 20

// newScale returns a scale for these values. Ranges that are drawn beside them must find room, but don't decide whether it
// is logarithmic: one round that was disturbed would.
func newScale(values, ranges []float64, from, to float64) scale {
	least, most := extent(values)
	_, end := extent(append(ranges, most))
	end *= 1.02
	switch {
	case end == 0: // nothing but zeros
		return scale{high: 1, from: from, to: to}
	case most < logFrom*least:
		return scale{high: end, from: from, to: to}
	}
	return scale{low: math.Floor(math.Log10(least) - 0.3), high: math.Log10(end), log: true, from: from, to: to}
}

// extent returns the least and the greatest of those above 0; without any infinity and 0.
func extent(values []float64) (least, most float64) {
	least = math.Inf(1)
	for _, v := range values {
		if v > 0 {
			least, most = min(least, v), max(most, v)
		}
	}
	return least, most
}

// at returns the place of a value. What lies off the scale is put at its end.
func (s scale) at(v float64) float64 {
	if s.log {
		v = math.Log10(max(v, math.Pow(10, s.low)))
	}
	share := (v - s.low) / (s.high - s.low)
	return s.from + min(max(share, 0), 1)*(s.to-s.from)
}

// ticks returns a few round values within the scale.
func (s scale) ticks() (ticks []float64) {
	if s.log {
		for e := s.low; e <= s.high; e++ {
			ticks = append(ticks, math.Pow(10, e))
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10(s.high)))
	switch { // three to seven of them
	case s.high/step < 1.5:
		step /= 5
	case s.high/step < 3:
		step /= 2
	case s.high/step > 7:
		step *= 2
	}
	for i := 0.0; i*step <= s.high*(1+1e-9); i++ {
		ticks = append(ticks, i*step)
	}
	return ticks
}

// label writes a value of this unit for a plot, in at most ten characters or so.
func (u Unit) label(v float64) string {
	switch {
	case v == 0:
		return "0"
	case u == Micros && v >= 1e6:
		return short(v/1e6) + " s"
	case u == Micros && v >= 1e3:
		return short(v/1e3) + " ms"
	case u == Micros:
		return short(v) + " µs"
	case u == PerSecond:
		return grouped(v) + "/s"
	case u == Bytes && v >= 1e6:
		return short(v/1e6) + " MB"
	case u == Bytes && v >= 1e3:
		return short(v/1e3) + " kB"
	case u == Bytes:
		return short(v) + " B"
	case u == Percent:
		return short(v) + " %"
	}
	return grouped(v)
}

// short writes three digits at least, and none of them a trailing zero after the point.
func short(v float64) string {
	places := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	text := strconv.FormatFloat(v, 'f', places, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// grouped writes a number with a comma between thousands.
func grouped(v float64) string {
	if math.Abs(v) < 1000 {
		return short(v)
	}
	digits := fmt.Sprintf("%.0f", math.Abs(v))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if v < 0 {
		return "-" + digits
	}
	return digits
}
