package doctor

import "time"

// For tests of what can't be brought about on a server in a test.
var (
	CheckVersion = checkVersion
	CheckQueue   = checkQueue
	IsLocal      = isLocal
)

// JudgeClock is judgeClock with the default limits.
func JudgeClock(ahead, uncertain time.Duration) []Result {
	return (&exam{Config: Config{Limits: DefaultLimits()}}).judgeClock(ahead, uncertain)
}
