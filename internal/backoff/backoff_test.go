package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
)

func TestPausesDoubleUpToTheMaximum(t *testing.T) {
	t.Parallel()
	b := backoff.Backoff{First: 4 * time.Millisecond, Max: 30 * time.Millisecond}
	for range 3 {
		for i, nominal := range []time.Duration{4, 8, 16, 30, 30} {
			nominal *= time.Millisecond
			if d := b.Next(); d < nominal/2 || d >= nominal/2+nominal {
				t.Errorf("pause %d is %v, the nominal value is %v", i, d, nominal)
			}
		}
		b.Reset()
	}
}

func TestPausesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[backoff.Jitter(time.Second)] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d different pauses of 100", len(seen))
	}
}

func TestSleepEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := backoff.Sleep(t.Context(), time.Minute); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		b := backoff.Backoff{First: time.Minute, Max: time.Minute}
		if err := b.Sleep(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}
