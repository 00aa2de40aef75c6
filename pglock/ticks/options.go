package ticks

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

var (
	// ErrDone: the tick was run, here or elsewhere.
	ErrDone = errors.New("ticks: done already")

	// ErrClock: this machine's clock is more than a minute ahead of the database's.
	ErrClock = errors.New("ticks: the clock is ahead")

	// ErrLost: the lease was lost during the run.
	ErrLost = pglock.ErrLost

	// ErrNotAcquired: the tick, or one before, is being run.
	ErrNotAcquired = pglock.ErrNotAcquired

	// ErrInvalidOption: an option or argument makes no sense.
	ErrInvalidOption = pglock.ErrInvalidOption
)

// maxAhead is how far a clock may be ahead of the database's.
const maxAhead = time.Minute

const (
	defaultTTL = 30 * time.Second
	takeover   = 5 * time.Second // after the end of a dead runner's lease
)

// Option configures a Job.
type Option func(*config) error

type config struct {
	ttl     time.Duration
	wait    time.Duration
	waitSet bool
	report  func(tick time.Time, err error)
	now     func() time.Time
}

func newConfig() config {
	c := config{report: func(time.Time, error) {}, now: time.Now}
	c.setTTL(defaultTTL)
	return c
}

func (c *config) setTTL(d time.Duration) {
	c.ttl = d
	if !c.waitSet {
		c.wait = d + takeover
	}
}

// WithTTL sets how long the lease of a run lasts when its runner dies, and so, how long it takes until somebody else
// runs the tick. A run may last longer: it is renewed. Default 30 s.
func WithTTL(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return invalidOption("a TTL of %v", d)
		}
		c.setTTL(d)
		return nil
	}
}

// WithWait sets how long a tick waits while it, or one before, is being run; 0 passes it over then. A
// shorter time than the TTL passes over ticks whose runner has died, too. Default: the TTL and five seconds.
func WithWait(d time.Duration) Option {
	return func(c *config) error {
		if d < 0 {
			return invalidOption("a wait of %v", d)
		}
		c.wait, c.waitSet = d, true
		return nil
	}
}

// WithReport has report called with what became of each tick, in Every and in the schedulers' packages: nil,
// an error that wraps ErrDone if another machine has run it, or what went wrong. It may be called by several
// goroutines. Default: nobody is told.
func WithReport(report func(tick time.Time, err error)) Option {
	return func(c *config) error {
		if report == nil {
			return invalidOption("the report function is nil")
		}
		c.report = report
		return nil
	}
}

// WithClock sets the clock that tells when a tick is due, for tests. Default time.Now.
func WithClock(now func() time.Time) Option {
	return func(c *config) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.now = now
		return nil
	}
}

// Report tells what WithReport has asked for. It is for schedulers' packages.
func (j *Job) Report(tick time.Time, err error) { j.cfg.report(tick, err) }

// Now tells the time by the job's clock. It is for schedulers' packages.
func (j *Job) Now() time.Time { return j.cfg.now() }

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidOption}, args...)...)
}
