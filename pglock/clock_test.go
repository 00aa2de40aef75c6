package pglock_test

import (
	"os"
	"testing"
	"time"
)

// TestTheClockJumps is the control of testdata/clock/jump.sh, which runs the other tests while the
// wall clock jumps. No lease may depend on the wall clock.
func TestTheClockJumps(t *testing.T) {
	t.Parallel()
	if os.Getenv("PGLOCK_TEST_CLOCK") != "jumps" {
		t.Skip("only under testdata/clock/jump.sh: make clock")
	}
	began, most := time.Now(), time.Duration(0)
	looks := time.NewTicker(10 * time.Millisecond)
	defer looks.Stop()
	for time.Since(began) < time.Second {
		<-looks.C
		now := time.Now()
		stepped := now.Round(0).Sub(began.Round(0)) - now.Sub(began) // Round drops the monotonic reading
		most = max(most, stepped.Abs())
	}
	if most < 5*time.Minute-time.Second {
		t.Errorf("the wall clock jumped by %v at most", most)
	}
}
