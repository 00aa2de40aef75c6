package advisory

import "time"

// The times of this package. Jitter makes a pause up to one and a half times its nominal value.
const (
	// Pauses of pollers double from firstPause to maxPause, so that no pause is longer than 375 ms.
	firstPause = 4 * time.Millisecond
	maxPause   = 250 * time.Millisecond

	// clientIdle is how long a client may leave probes of the server unanswered. acquire.sql sets
	// it: 5 s of silence, and then 3 probes 2 s apart.
	clientIdle = 11 * time.Second

	// Defaults and bounds of the options.
	defaultPoolWait  = 10 * time.Second
	defaultKeepAlive = time.Second
	minKeepAlive     = 100 * time.Millisecond

	// secondConnWait bounds what the second connection does that detects poolers: a pooler may let
	// it wait for a session.
	secondConnWait = 10 * time.Second
)
