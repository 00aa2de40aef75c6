package trial

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

func TestOperationsASecond(t *testing.T) {
	t.Parallel()
	if got := PerTime("tries", 40, 4*time.Second); got != (Figure{"tries", PerSecond, 10}) {
		t.Errorf("%+v", got)
	}
}

// TestCrowdCountsWhatEndsAfterTheWarmUp: a call that began in the warm-up counts if it ends after it.
func TestCrowdCountsWhatEndsAfterTheWarmUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, err := Crowd(t.Context(), 8, 50*time.Millisecond, 100*time.Millisecond, func(context.Context, int) error {
			time.Sleep(20 * time.Millisecond) //nolint:forbidigo // of a synctest bubble
			return nil
		})
		if want := 8 * 5; err != nil || n != want { // at 60, 80, 100, 120, 140 ms
			t.Errorf("%d counted, want %d, %v", n, want, err)
		}
	})
}

func TestCrowdStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var calls atomic.Int64
	_, err := Crowd(t.Context(), 8, 0, time.Hour, func(ctx context.Context, _ int) error {
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
