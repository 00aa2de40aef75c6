package sim

import (
	"cmp"
	"os"
	"testing"
	"time"
)

// worlds is the number of worlds in the short form.
var worlds uint64 = 500

// TestWorlds runs the worlds of everything that a client can do.
func TestWorlds(t *testing.T) {
	if cmp.Or(os.Getenv("PGLOCK_SIM"), os.Getenv("PGLOCK_SEED")) != "" {
		Simulate(t, everything)
		return
	}
	began := time.Now()
	failure, runs := Search(t, 1, worlds, time.Hour, everything)
	if failure != "" {
		t.Error(failure)
	}
	logRate(t, runs, began)
}

// TestControl: processes with a mistake are found.
func TestControl(t *testing.T) {
	failure, runs := Search(t, 1, 100, time.Hour, careless)
	if failure == "" {
		t.Errorf("%d worlds, and no write was late", runs)
	}
}
