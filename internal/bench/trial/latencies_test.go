package trial

import (
	"math"
	"testing"
	"time"
)

func TestLatenciesOfARound(t *testing.T) {
	t.Parallel()
	l := NewLatencies()
	for i := 100; i > 0; i-- {
		l.Record(time.Duration(i) * time.Microsecond)
	}
	got := l.Figures("op")
	if want := (Figure{"op p50", Micros, 50}); got[0] != want {
		t.Errorf("%+v, want %+v", got[0], want)
	}
	if want := (Figure{"op p99", Micros, 99}); got[1] != want {
		t.Errorf("%+v, want %+v", got[1], want)
	}
	l.Record(time.Millisecond)
	if got := l.Figures("op")[0].Value; got != 1000 {
		t.Errorf("the next round begins with what was before: p50 %v", got)
	}
	if got := l.Figures("op")[0].Value; !math.IsNaN(got) {
		t.Errorf("p50 of nothing is %v", got)
	}
}
