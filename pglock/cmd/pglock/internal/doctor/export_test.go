package doctor

import "time"

// For tests of what can't be brought about on a server in a test.

var IsLocal = isLocal

// ClockLevel is the level of a difference of the clocks with the default limits.
func ClockLevel(ahead, uncertain time.Duration) Level {
	return (&checker{Config: Config{Limits: DefaultLimits()}}).clockResult(ahead, uncertain).Level
}
