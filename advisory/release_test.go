package advisory_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestI9_CancelledRelease: it goes on without its caller; those who ask again are told how it ended.
func TestI9_CancelledRelease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("release", t.Name())
	s, err := advisory.Acquire(t.Context(), pool, key, advisory.WithNotice(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Release(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := s.Err(); !errors.Is(err, advisory.ErrReleased) && err != nil {
		t.Errorf("meanwhile: %v", err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := s.Release(soon(t, time.Minute)); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
	all.Wait()
	if err := s.Err(); !errors.Is(err, advisory.ErrReleased) {
		t.Errorf("afterwards: %v", err)
	}
	if n := locksOn(t, pool, key); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	next, err := advisory.TryAcquire(t.Context(), pool, key, advisory.WithNotice(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
	whole(t, pool)
}
