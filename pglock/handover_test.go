package pglock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock/pglock-go/pglock"
)

// TestDoLeavesALockThatItsFunctionHandsOver: Do does not release it, and another client goes on.
func TestDoLeavesALockThatItsFunctionHandsOver(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	var fence pglock.Fence
	err := f.Do(t.Context(), "n", func(_ context.Context, l *pglock.Lease) (err error) {
		fence, err = l.HandOver()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.TryAcquire(t.Context(), "n"); !errors.Is(err, pglock.ErrNotAcquired) {
		t.Errorf("the lock is free: %v", err)
	}
	l, err := f.Adopt(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := f.Adopt(t.Context(), fence); !errors.Is(err, pglock.ErrStale) {
		t.Errorf("after the release: %v", err)
	}
}
