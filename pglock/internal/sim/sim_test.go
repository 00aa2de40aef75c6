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

// TestAShortFaultEndsNoLongOne: what strikes a process that rests makes its rest no shorter, neither
// for its messages nor for the judge.
func TestAShortFaultEndsNoLongOne(t *testing.T) {
	w := newWorld(plan{})
	n := w.newNode(0, "worker 1")
	w.strike(0, Fault{Node: -1, Kind: rests, For: time.Hour})
	long := n.restUntil
	w.strike(0, Fault{Node: -1, Kind: cut})
	n.suffers("renew", "a", lost)
	n.stall(time.Second)
	if n.restUntil != long || n.struck != long || n.hindered[allStatements] != long {
		t.Errorf("rests until %v, is struck until %v, hindered until %v; want %v", n.restUntil, n.struck, n.hindered[allStatements], long)
	}
	w.strike(0, Fault{Node: -1, Kind: hangs, For: time.Minute})
	busy := w.busyUntil
	w.strike(0, Fault{Node: -1, Kind: hangs, For: time.Second})
	if w.busyUntil != busy {
		t.Errorf("the server hangs until %v, want %v", w.busyUntil, busy)
	}
}
