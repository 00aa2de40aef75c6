package trial

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Repeat calls op again and again for d, and stops at its first error. It returns how
// many calls succeeded.
func Repeat(ctx context.Context, d time.Duration, op func(ctx context.Context) error) (count int, err error) {
	for end := time.Now().Add(d); time.Now().Before(end); count++ {
		if err := op(ctx); err != nil {
			return count, err
		}
	}
	return count, nil
}

// Crowd has n goroutines repeat op for d. The first error stops all of them.
func Crowd(ctx context.Context, n int, d time.Duration, op func(ctx context.Context) error) (count int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var total atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			count, err := Repeat(ctx, d, op)
			if err != nil {
				cancel(err) // of several only the first is the cause
			}
			total.Add(int64(count))
		})
	}
	all.Wait()
	return int(total.Load()), context.Cause(ctx)
}
