package advisory

import (
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
)

// The times of this package. Jitter makes a pause up to one and a half times its nominal value.
const (
	// Pauses of pollers double from firstPause to maxPause, so that no pause is longer than 375 ms.
	firstPause = 4 * time.Millisecond
	maxPause   = 250 * time.Millisecond

	// nextPause is the longest pause of the session that is next. Only one session for each key
	// polls that often. It must be much shorter than turnstileIdle.
	nextPause = 50 * time.Millisecond

	// turnstileIdle is how long a session that is next may be silent before the server ends it.
	// pass.sql sets it.
	turnstileIdle = 2 * time.Second

	// clientIdle is how long a client may leave probes of the server unanswered. pass.sql sets it:
	// 5 s of silence, and then 3 probes 2 s apart.
	clientIdle = 11 * time.Second

	// Defaults and bounds of the options.
	defaultPoolWait  = 10 * time.Second
	defaultKeepAlive = time.Second
	minKeepAlive     = 100 * time.Millisecond

	// secondConnWait bounds what the second connection does that detects poolers: a pooler may let
	// it wait for a session.
	secondConnWait = 10 * time.Second
)

// pollPauses returns the pauses of a poller.
func pollPauses() backoff.Backoff { return backoff.Backoff{First: firstPause, Max: maxPause} }

// nextPauses returns the pauses of the session that is next.
func nextPauses() backoff.Backoff { return backoff.Backoff{First: firstPause, Max: nextPause} }
