package trial

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
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

func TestCrowdCountsWhatEndsAfterTheWarmUp(t *testing.T) {
	t.Parallel()
	const lead, d = 50 * time.Millisecond, 100 * time.Millisecond
	began := time.Now()
	var within, sure atomic.Int64
	n, err := Crowd(t.Context(), 8, lead, d, func(context.Context) error {
		time.Sleep(time.Millisecond) //nolint:forbidigo // what is counted takes time
		switch since := time.Since(began); {
		case since > lead+5*time.Millisecond && since < lead+d-5*time.Millisecond:
			sure.Add(1)
			within.Add(1)
		case since > lead-5*time.Millisecond && since < lead+d+5*time.Millisecond:
			within.Add(1)
		}
		return nil
	})
	if err != nil || int64(n) < sure.Load() || int64(n) > within.Load() {
		t.Errorf("%d counted, not from %d to %d, %v", n, sure.Load(), within.Load(), err)
	}
}

func TestCrowdStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var calls atomic.Int64
	_, err := Crowd(t.Context(), 8, 0, time.Hour, func(ctx context.Context) error {
		if calls.Add(1) == 8 {
			return broken
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, broken) {
		t.Errorf("want the first error, got %v", err)
	}
}
