package leasetable

import "time"

// Statements for the default schema, for tests that send them themselves.
var (
	AcquireSQL    = sqlFile("acquire")
	LookSQL       = sqlFile("look")
	TakeSQL       = sqlFile("take")
	ReleaseAllSQL = sqlFile("release_all")
)

// NewRequest returns a request that nobody has made.
var NewRequest = newRequest

// StopTimer keeps the lease's timer from firing, as in a process that sleeps.
func StopTimer(l *Lease) { l.timer.Stop() }

// NewBackoff returns the pauses of one waiter.
func NewBackoff() func(remaining time.Duration) time.Duration { return new(backoff).next }

// Waiting returns how many goroutines of the client are in line for the name.
func Waiting(c *Client, name string) int {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	if ln := c.waiting.lines[name]; ln != nil {
		return len(ln.turns)
	}
	return 0
}

// WithBatches has n calls share a statement at most, and a single call take the
// statement for many if forced.
func WithBatches(n int, forced bool) Option {
	return clientOption(func(c *clientConfig) error {
		c.batch, c.forceBatch = n, forced
		return nil
	})
}

// Gathered returns how many calls wait for a lane.
func Gathered(c *Client) int {
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	return len(c.lanes.asks) + len(c.lanes.frees)
}

// Listening reports whether the client's listening connection is there.
func Listening(c *Client) bool { return c.ears.listening() }

// WithJanitor has the client prune that often what is idle for that long.
func WithJanitor(every, retention time.Duration) Option {
	return clientOption(func(c *clientConfig) error {
		c.pruneEvery, c.retention = every, retention
		return nil
	})
}

// User returns the role as which the client connects.
func User(c *Client) string { return c.conns.pool.Config().ConnConfig.User }

// Resting reports whether the first in the client's line for name has a ticket, and asks
// nothing at the moment.
func Resting(c *Client, name string) bool {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	ln := c.waiting.lines[name]
	return ln != nil && len(ln.turns) > 0 && ln.ticket != 0 && ln.join == nil && ln.turns[0].state == resting
}

// Remember has Close release l again, as if l had ended at this moment.
func Remember(c *Client, l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases[l] = struct{}{}
}
