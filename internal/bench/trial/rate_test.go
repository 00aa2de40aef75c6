package trial

import (
	"math"
	"testing"
	"time"
)

func TestRateOfARound(t *testing.T) {
	t.Parallel()
	var r Rate
	r.Add(30, time.Second)
	r.Add(10, 3*time.Second)
	if got := r.Figure("tries"); got != (Figure{"tries", PerSecond, 10}) {
		t.Errorf("%+v", got)
	}
	if got := r.Figure("tries").Value; !math.IsNaN(got) {
		t.Errorf("the rate of nothing is %v", got)
	}
}
