package trial

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want   float64
		values []float64
	}{{2, []float64{3, 1, 2}}, {2.5, []float64{4, 1, 3, 2}}, {7, []float64{7}}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of nothing is a number")
	}
}
