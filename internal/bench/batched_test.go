package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestCallsGatherWhileBatchesAreInFlight: the first ones wait for nothing, the others share the next batch,
// and an error is that of each call of its batch.
func TestCallsGatherWhileBatchesAreInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int
		locks := openBatched(func(_ context.Context, batch []*call) error {
			mu.Lock()
			sizes = append(sizes, len(batch))
			mu.Unlock()
			time.Sleep(time.Second) //nolint:forbidigo // of a synctest bubble
			return nil
		}, func(context.Context, []*call) error { return errRefused }, func() {})
		defer locks.close()
		var all sync.WaitGroup
		const calls = inFlight + maxBatch + 1
		began := time.Now()
		for range calls {
			all.Go(func() {
				if err := locks.pair(t.Context(), "name"); !errors.Is(err, errRefused) {
					t.Errorf("got %v", err)
				}
			})
			synctest.Wait() // so that each of the first ones finds an idle worker
		}
		all.Wait()
		slices.Sort(sizes)
		if want := append(slices.Repeat([]int{1}, inFlight+1), maxBatch); !slices.Equal(sizes, want) {
			t.Errorf("batches of %v, want %v", sizes, want)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
