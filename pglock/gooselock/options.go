package gooselock

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// Option configures a SessionLocker or a Locker.
type Option func(*config) error

type config struct {
	timeout time.Duration // 0: until the context ends
	key     *int64        // of another program's lock; nil for none
}

// WithTimeout bounds the wait for the lock. Default: until goose's context ends.
func WithTimeout(d time.Duration) Option {
	return func(c *config) error {
		c.timeout = d
		return errs.Require("gooselock", d > 0, "WithTimeout: %v: must be positive", d)
	}
}

// DefaultKey is the number of the advisory lock that goose's own session locker acquires by
// default, for WithKey.
const DefaultKey int64 = 4097083626

// WithKey makes a SessionLocker acquire the advisory lock of another program too,
// pg_advisory_lock(id), after its own and on the same connection. Use it for one release, while
// replicas of the previous one still use goose's own session locker (DefaultKey, or the number that
// they pass to its WithLockID). A Locker refuses it. Default: its own lock only.
func WithKey(id int64) Option {
	return func(c *config) error { c.key = &id; return nil }
}

func newConfig(opts []Option) (c config, err error) {
	err = errs.Apply("gooselock", &c, opts)
	return c, err
}

func (c config) waitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.timeout, pglock.ErrTimeout)
}
