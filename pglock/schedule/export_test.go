package schedule

import "time"

// WaitFor is waitFor, for tests.
func (j *Job) WaitFor(s Schedule, tick time.Time) time.Duration { return j.waitFor(s, tick) }

// Report is report, for tests.
func (j *Job) Report(tick time.Time, err error) { j.report(tick, err) }

// PauseAfter is pauseAfter, for tests.
func (j *Job) PauseAfter(failures int) time.Duration { return j.pauseAfter(failures) }
