package trial

import (
	"fmt"
	"testing"
)

func TestTicksAreFewAndRound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{[]float64{0.86, 0.9}, "[0 0.2 0.4 0.6 0.8]"},
		{[]float64{455, 183}, "[0 100 200 300 400]"},
		{[]float64{120}, "[0 20 40 60 80 100 120]"},
		{[]float64{26_000, 5000}, "[0 5000 10000 15000 20000 25000]"},
		{[]float64{0, 950}, "[0 200 400 600 800]"},
		{[]float64{15, 33_000}, "[1 10 100 1000 10000]"},
		{[]float64{25, 33_000}, "[10 100 1000 10000]"},
		{[]float64{0, 0}, "[0 0.2 0.4 0.6 0.8 1]"},
	} {
		var got []float64
		for _, tick := range newScale(c.values, nil, 0, 100).ticks() {
			got = append(got, float64(int(tick*1000+0.5))/1000)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("of %v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestOneDisturbedRoundMakesNoLogarithmicScale(t *testing.T) {
	t.Parallel()
	if s := newScale([]float64{100, 300}, []float64{1, 9000}, 0, 100); s.log || s.at(9000) > 100 || s.at(9000) < 95 {
		t.Errorf("%+v", s)
	}
	if s := newScale([]float64{100, 3000}, nil, 0, 100); !s.log {
		t.Errorf("%+v", s)
	}
}

func TestPlacesOnAScale(t *testing.T) {
	t.Parallel()
	linear, log := scale{high: 10, from: 100, to: 200}, scale{low: 1, high: 3, log: true, from: 100, to: 200}
	for _, c := range []struct {
		s       scale
		v, want float64
	}{{linear, 0, 100}, {linear, 5, 150}, {linear, 11, 200}, {linear, -1, 100}, {log, 10, 100}, {log, 100, 150}, {log, 1000, 200}, {log, 0, 100}, {log, -4, 100}} {
		if got := c.s.at(c.v); got != c.want {
			t.Errorf("%v on %+v: %v, want %v", c.v, c.s, got, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Micros, 0, "0"}, {Micros, 43.82, "43.8 µs"}, {Micros, 454.6, "455 µs"}, {Micros, 1134, "1.13 ms"}, {Micros, 20_000, "20 ms"}, {Micros, 1_000_688, "1 s"},
		{PerSecond, 1.96, "1.96/s"}, {PerSecond, 1_033_915.2, "1,033,915/s"}, {PerSecond, -3.9, "-3.9/s"},
		{Bytes, 589.3, "589 B"}, {Bytes, 41_000, "41 kB"}, {Bytes, 4_840_000, "4.84 MB"},
		{Times, 0.857, "0.857"}, {Count, 10_000, "10,000"}, {Count, -12_345, "-12,345"}, {Percent, 2.84, "2.84 %"},
	} {
		if got := c.unit.label(c.v); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}
