package doctor

import (
	"context"
	"fmt"
	"time"
)

// clockSamples is how often the clocks are compared. The one with the fastest answer counts.
const clockSamples = 3

// checkClock compares this machine's clock with the server's, and the server's clock with the times
// in the lock table. It can't see a jump between two looks.
func (e *exam) checkClock(ctx context.Context) ([]Result, error) {
	var ahead, uncertain time.Duration // of this machine's clock
	for i := range clockSamples {
		var now time.Time
		began := time.Now()
		if err := e.row(ctx, "SELECT pg_catalog.clock_timestamp()", nil, &now); err != nil {
			return nil, err
		}
		half := time.Since(began) / 2
		if i == 0 || half < uncertain {
			ahead, uncertain = began.Add(half).Round(0).Sub(now), half
		}
	}
	problems := e.judgeClock(ahead, uncertain)
	if e.usable {
		back, err := e.clockWentBack(ctx)
		if err != nil {
			return problems, err
		}
		if back > time.Second {
			problems = append(problems, fail(fmt.Sprintf("a lock was granted %v in the future: the server's clock was set back, and leases of then last longer", round(back)),
				"let NTP slew the server's clock, never step it; the leases expire by themselves"))
		}
	}
	return orOK(problems, "this machine is %v %s the server (±%v), no grant is in the future; jumps between two looks are not seen",
		round(ahead.Abs()), direction(ahead), round(uncertain))
}

func direction(ahead time.Duration) string {
	if ahead < 0 {
		return "behind"
	}
	return "ahead of"
}

// judgeClock: leases never compare the two clocks. Ticks of package schedule do.
func (e *exam) judgeClock(ahead, uncertain time.Duration) []Result {
	const remedy = "synchronize both machines with NTP"
	found := fmt.Sprintf("this machine's clock is %v %s the server's: leases do not compare them, but ticks of schedules do", round(ahead.Abs()), direction(ahead))
	switch {
	case ahead-uncertain > maxAhead:
		return []Result{fail(found+", and refuse to run", remedy)}
	case ahead.Abs()-uncertain > e.Limits.ClockDifference:
		return []Result{warn(found, remedy)}
	}
	return nil
}

// clockWentBack returns how far the latest grant is in the server's future, or less than zero.
func (e *exam) clockWentBack(ctx context.Context) (time.Duration, error) {
	scan, err := e.scanLocks(ctx)
	if err != nil {
		return 0, err
	}
	return seconds(scan.FutureSeconds), nil
}
