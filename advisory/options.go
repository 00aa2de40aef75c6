package advisory

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// LockOption configures how Lock, Do and Acquire wait for a lock.
type LockOption interface {
	DoOption
	SessionOption
	applyLock(*lockConfig) error
}

// DoOption configures Do. Every LockOption is one.
type DoOption interface {
	applyDo(*doConfig) error
}

// SessionOption configures Acquire and TryAcquire. Every LockOption is one.
type SessionOption interface {
	applySession(*sessionConfig) error
}

type lockConfig struct {
	timeout time.Duration // 0: as long as ctx
	polling bool
}

type doConfig struct {
	lock     lockConfig
	poolWait time.Duration
	tx       pgx.TxOptions
	moreKeys []Key
	retries  int
}

type sessionConfig struct {
	lock      lockConfig
	poolWait  time.Duration
	shared    bool
	keepAlive time.Duration
}

type lockOption func(*lockConfig) error

func (o lockOption) applyLock(c *lockConfig) error       { return o(c) }
func (o lockOption) applyDo(c *doConfig) error           { return o(&c.lock) }
func (o lockOption) applySession(c *sessionConfig) error { return o(&c.lock) }

type doOption func(*doConfig) error

func (o doOption) applyDo(c *doConfig) error { return o(c) }

type sessionOption func(*sessionConfig) error

func (o sessionOption) applySession(c *sessionConfig) error { return o(c) }

type poolWaitOption time.Duration

func (o poolWaitOption) applyLock(*lockConfig) error {
	return invalidOption("WithPoolWait does not apply to Lock: it uses the transaction's connection")
}

func (o poolWaitOption) applyDo(c *doConfig) error           { return o.set(&c.poolWait) }
func (o poolWaitOption) applySession(c *sessionConfig) error { return o.set(&c.poolWait) }

func (o poolWaitOption) set(wait *time.Duration) error {
	if o <= 0 {
		return invalidOption("pool wait %v: must be positive", time.Duration(o))
	}
	*wait = time.Duration(o)
	return nil
}

// WithTimeout bounds the wait for the lock, not counting the wait for a connection. When the
// time has passed, the call fails with ErrNotAcquired and ErrTimeout. It counts in whole
// milliseconds, rounded up. A shorter lock_timeout of the caller's transaction takes precedence.
// Default: as long as the context lasts.
func WithTimeout(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d <= 0 {
			return invalidOption("timeout %v: must be positive: use TryLock or TryAcquire for a single attempt", d)
		}
		c.timeout = d
		return nil
	})
}

// WithPolling makes Lock and Do poll, with growing and jittered pauses of up to 375 ms, instead
// of blocking in the server. Use it for waits that may be long: a blocked statement holds a
// snapshot, and CREATE INDEX CONCURRENTLY and vacuum wait for it. Pollers are not served in
// order, and they notice a release late. Between two attempts of Lock the transaction is idle, so
// its idle_in_transaction_session_timeout must be longer than a pause. Acquire always polls.
// Default: block.
func WithPolling() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.polling = true
		return nil
	})
}

// WithPoolWait bounds the wait of Do and Acquire for a connection of the pool. When the time has
// passed, the call fails with ErrPoolExhausted. Lock takes no connection from a pool and refuses
// the option with ErrInvalidOption. Default: 10 s.
func WithPoolWait(d time.Duration) LockOption { return poolWaitOption(d) }

// WithIsolation sets the transaction's isolation level. At every level the function sees what
// the lock's previous holder has committed, since the snapshot is taken once the lock is held.
// Default: the server's default.
func WithIsolation(level pgx.TxIsoLevel) DoOption {
	return doOption(func(c *doConfig) error {
		switch level {
		case pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
			c.tx.IsoLevel = level
			return nil
		}
		return invalidOption("isolation level %q: must be one of pgx's TxIsoLevel constants", level)
	})
}

// WithAccessMode makes the transaction read-only or read-write. Default: the server's default.
func WithAccessMode(mode pgx.TxAccessMode) DoOption {
	return doOption(func(c *doConfig) error {
		switch mode {
		case pgx.ReadOnly, pgx.ReadWrite:
			c.tx.AccessMode = mode
			return nil
		}
		return invalidOption("access mode %q: must be one of pgx's TxAccessMode constants", mode)
	})
}

// WithKeys locks these keys too, in one statement and in the same order everywhere, so that
// transactions that lock several keys do not deadlock with each other. Default: none.
func WithKeys(keys ...Key) DoOption {
	return doOption(func(c *doConfig) error {
		c.moreKeys = append(c.moreKeys, keys...)
		return nil
	})
}

// WithRetry runs the whole transaction again, up to n times, if the server refuses it with a
// serialization failure or a deadlock (SQLSTATE 40001 and 40P01). The function runs again too, so
// it must do nothing outside the transaction that can't be repeated. Default: 0.
func WithRetry(n int) DoOption {
	return doOption(func(c *doConfig) error {
		if n < 0 {
			return invalidOption("%d retries: must be 0 or more", n)
		}
		c.retries = n
		return nil
	})
}

// WithShared acquires a shared lock, which excludes only exclusive ones. A waiter for an
// exclusive lock keeps new shared ones out until it was served, and a waiter for a shared lock
// keeps out new exclusive ones, so that neither kind starves the other. Default: exclusive.
func WithShared() SessionOption {
	return sessionOption(func(c *sessionConfig) error {
		c.shared = true
		return nil
	})
}

// WithKeepAliveTimeout sets how long the server may be silent before the lock counts as lost,
// 100 ms at least. The session probes the server every quarter of d, and waits half of d for the
// answer. A closed connection is noticed at once. Default: 1 s.
func WithKeepAliveTimeout(d time.Duration) SessionOption {
	return sessionOption(func(c *sessionConfig) error {
		if d < minKeepAlive {
			return invalidOption("keep-alive timeout %v: must be at least %v", d, minKeepAlive)
		}
		c.keepAlive = d
		return nil
	})
}
