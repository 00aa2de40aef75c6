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
	grants := Test(t, seeds, 6, everything)
	t.Logf("%d worlds, %d grants, %v, %.0f simulated seconds a second", len(seeds), grants, time.Since(began), float64(len(seeds))*Length.Seconds()/time.Since(began).Seconds())
}
