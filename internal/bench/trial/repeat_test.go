package trial

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestCrowdCountsWhatSucceedsAndStopsAtAnError(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	n, err := Crowd(t.Context(), 8, 10*time.Millisecond, func(context.Context) error {
		calls.Add(1)
		return nil
	})
	if err != nil || int64(n) != calls.Load() || n < 8 {
		t.Errorf("%d counted of %d calls, %v", n, calls.Load(), err)
	}

	broken := errors.New("broken")
	calls.Store(0)
	_, err = Crowd(t.Context(), 8, time.Hour, func(ctx context.Context) error {
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
