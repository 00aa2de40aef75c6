package advisory

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// LockOption configures how Lock, Do and Acquire wait for a lock.
type LockOption interface {
	DoOption
	SessionOption
	forLock()
}

// DoOption configures Do, as every LockOption also does.
type DoOption interface {
	apply(*config) error
	forDo()
}

// SessionOption configures Acquire and TryAcquire, as every LockOption also does.
type SessionOption interface {
	apply(*config) error
	forSession()
}

// config has the options of all calls.
type config struct {
	timeout   time.Duration // 0: as long as ctx
	poolWait  time.Duration
	keepAlive time.Duration
	isolation pgx.TxIsoLevel
	moreKeys  []Key
	retries   int
}

// option is an option of any call. The exported types that the functions below return restrict it
// to the calls that accept it.
type option func(*config) error

func (o option) apply(c *config) error { return o(c) }
func (option) forDo()                  {}
func (option) forSession()             {}
func (option) forLock()                {}

// WithTimeout bounds the wait for the lock, not counting the wait for a connection. When the
// time has passed, the call fails with ErrNotAcquired and ErrTimeout. It counts in whole
// milliseconds, rounded up. A shorter lock_timeout of the caller's transaction takes precedence.
// Default: as long as the context lasts.
func WithTimeout(d time.Duration) LockOption {
	return option(func(c *config) error {
		c.timeout = d
		return errs.Require("advisory", d > 0, "timeout %v: must be positive: use TryLock or TryAcquire for a single attempt", d)
	})
}

// WithPoolWait bounds the wait of Do and Acquire for a connection of the pool. When the time has
// passed, 10 s by default, the call fails with ErrPoolExhausted.
func WithPoolWait(d time.Duration) interface {
	DoOption
	SessionOption
} {
	return option(func(c *config) error {
		c.poolWait = d
		return errs.Require("advisory", d > 0, "pool wait %v: must be positive", d)
	})
}

// WithIsolation sets the transaction's isolation level in place of the server's default.
func WithIsolation(level pgx.TxIsoLevel) DoOption {
	return option(func(c *config) error {
		c.isolation = level
		known := []pgx.TxIsoLevel{pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
		return errs.Require("advisory", slices.Contains(known, level), "isolation level %q: must be one of pgx's TxIsoLevel constants", level)
	})
}

// WithKeys locks these keys too, in one statement and in the same order everywhere, so that
// transactions that lock several keys do not deadlock with each other.
func WithKeys(keys ...Key) DoOption {
	return option(func(c *config) error { c.moreKeys = append(c.moreKeys, keys...); return nil })
}

// WithRetry runs the whole transaction again, up to n times, if the server refuses it with a
// serialization failure or a deadlock (SQLSTATE 40001 and 40P01). The function runs again too, so
// it must do nothing outside the transaction that can't be repeated. By default n is 0.
func WithRetry(n int) DoOption {
	return option(func(c *config) error {
		c.retries = n
		return errs.Require("advisory", n >= 0, "%d retries: must be 0 or more", n)
	})
}

// WithKeepAliveTimeout sets how long the server may be silent before the lock counts as lost, at
// least 100 ms and by default 1 s. The session probes the server every quarter of d, and waits half
// of d for the answer. A closed connection is noticed at once.
func WithKeepAliveTimeout(d time.Duration) SessionOption {
	return option(func(c *config) error {
		c.keepAlive = d
		return errs.Require("advisory", d >= minKeepAlive, "keep-alive timeout %v: must be at least %v", d, minKeepAlive)
	})
}
