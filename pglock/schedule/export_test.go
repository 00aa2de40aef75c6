package schedule

import "time"

// WaitFor is waitFor, for tests.
func (j *Job) WaitFor(s Schedule, tick time.Time) time.Duration { return j.waitFor(s, tick) }
