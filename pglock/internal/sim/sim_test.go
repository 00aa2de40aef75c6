package sim

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"
)

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func TestWorlds(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("SEEDS"))
	first, _ := strconv.Atoi(os.Getenv("FIRST"))
	var seeds []uint64
	for i := range max(n, 20) {
		seeds = append(seeds, uint64(first+i))
	}
	began := time.Now()
	for _, seed := range seeds {
		if !Run(t, seed, everything) {
			break
		}
	}
	took := time.Since(began)
	t.Logf("%d worlds in %v, %.0f simulated seconds a second", len(seeds), took, float64(len(seeds))*Length.Seconds()/took.Seconds())
}
