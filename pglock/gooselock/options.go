package gooselock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

var (
	// ErrNotAcquired: somebody else holds the lock.
	ErrNotAcquired = pglock.ErrNotAcquired

	// ErrTimeout: the time given by WithTimeout is over. It comes with ErrNotAcquired.
	ErrTimeout = pglock.ErrTimeout

	// ErrLost: the lock was lost while goose migrated.
	ErrLost = pglock.ErrLost

	// ErrInvalidOption: an option makes no sense.
	ErrInvalidOption = pglock.ErrInvalidOption
)

// BusyError tells that a session lock was waited for in vain, and which session of the server holds it.
type BusyError struct {
	Name   string
	PID    int    // 0 if nobody could tell
	Holder string // its application_name, empty if it has none or the role may not see it
	Waited time.Duration
	Cause  error
}

func (e *BusyError) Error() string {
	holder := "somebody"
	if e.PID != 0 {
		holder = fmt.Sprintf("server process %d", e.PID)
	}
	if e.Holder != "" {
		holder += fmt.Sprintf(" (%s)", e.Holder)
	}
	return fmt.Sprintf("gooselock: %v: %q is held by %s; gave up after %v: %v", ErrNotAcquired, e.Name, holder, e.Waited.Round(time.Millisecond), e.Cause)
}

// Unwrap makes errors.Is find ErrNotAcquired and the cause.
func (e *BusyError) Unwrap() []error { return []error{ErrNotAcquired, e.Cause} }

// Option configures a SessionLocker or a Locker.
type Option func(*config) error

type config struct {
	timeout time.Duration // 0: as long as the context
	lease   []pglock.LeaseOption
}

// WithTimeout bounds the wait for the lock. Default: as long as goose's context.
func WithTimeout(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("%w: a time-out of %v, it must be positive", ErrInvalidOption, d)
		}
		c.timeout = d
		return nil
	}
}

// WithLease sets options of a Locker's lease. A SessionLocker has none. Default: the client's.
func WithLease(opts ...pglock.LeaseOption) Option {
	return func(c *config) error {
		c.lease = append(c.lease, opts...)
		return nil
	}
}

func newConfig(opts []Option) (config, error) {
	var c config
	for _, o := range opts {
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c config) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.timeout, ErrTimeout)
}

func isReleased(err error) bool { return errors.Is(err, pglock.ErrReleased) }
