package sim

import (
	"os"
	"testing"
)

// TestRepeats logs, in the long form, where a world differs when it runs again. TestBugsAreFound
// says how often a failure repeats in spite of that.
func TestRepeats(t *testing.T) {
	if os.Getenv("PGLOCK_CHAOS") == "" {
		t.Skip("needs PGLOCK_CHAOS")
	}
	for seed := range uint64(12) {
		p := newPlan(seed)
		a, b := run(t, p, true, everything), run(t, p, true, everything)
		for i := range min(len(a.Trace), len(b.Trace)) {
			if a.Trace[i] != b.Trace[i] {
				t.Logf("seed %d, line %d of %d:\n%s\n%s\n%s", seed, i, len(a.Trace), a.Trace[max(i-1, 0)], a.Trace[i], b.Trace[i])
				break
			}
		}
	}
}
