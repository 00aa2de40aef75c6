package leasetable

import "time"

// AcquireSQL is the acquire statement for the default schema, for tests that
// send it themselves.
var AcquireSQL = acquireSQL

// StopTimer keeps the lease's timer from firing, as in a process that sleeps.
func StopTimer(l *Lease) { l.timer.Stop() }

// NewBackoff returns the pauses of one waiter.
func NewBackoff() func(remaining time.Duration) time.Duration { return new(backoff).next }

// Waiting returns how many goroutines of the client are in line for the name.
func Waiting(c *Client, name string) int {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	return len(c.waiting.lines[name])
}
