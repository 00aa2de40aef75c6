package sim

import (
	"cmp"
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

// TestWorlds runs the worlds of some seeds.
func TestWorlds(t *testing.T) {
	seeds, _ := strconv.ParseUint(cmp.Or(os.Getenv("SEEDS"), "20"), 10, 64)
	first, _ := strconv.ParseUint(os.Getenv("FIRST"), 10, 64)
	began := time.Now()
	failure, runs := Search(t, first, seeds, time.Hour, everything)
	took := time.Since(began)
	t.Logf("%d worlds in %v, %.0f simulated seconds a second", runs, took, float64(runs)*Length.Seconds()/took.Seconds())
	if failure != "" {
		t.Error(failure)
	}
}
