package pglock_test

import (
	"os"
	"testing"
	"time"
)

// TestTheClockIsWrong is the control of testdata/clock/wrong.sh, which runs the other tests with a wrong
// wall clock. No lease may depend on the wall clock.
func TestTheClockIsWrong(t *testing.T) {
	t.Parallel()
	if os.Getenv("PGLOCK_TEST_CLOCK") != "wrong" {
		t.Skip("only under testdata/clock/wrong.sh: make clock")
	}
	f, most := newFixture(t), time.Duration(0)
	looks := time.NewTicker(10 * time.Millisecond)
	defer looks.Stop()
	for range 100 {
		<-looks.C
		servers := value[time.Time](f, "SELECT clock_timestamp()")
		most = max(most, time.Now().Round(0).Sub(servers).Abs()) // Round drops the monotonic reading
	}
	if most < 5*time.Minute-time.Second {
		t.Errorf("the wall clock was wrong by %v at most", most)
	}
}
