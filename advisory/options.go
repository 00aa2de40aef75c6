package advisory

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// LockOption configures a lock in a transaction of the caller's.
type LockOption interface {
	applyLock(*lockConfig) error
}

// DoOption configures Do. Each LockOption is one too.
type DoOption interface {
	applyDo(*doConfig) error
}

// SessionOption configures a session lock.
type SessionOption interface {
	applySession(*sessionConfig) error
}

// WaitOption is one for Lock, Do and Acquire.
type WaitOption interface {
	LockOption
	DoOption
	SessionOption
}

// TxOption is one for Lock and Do.
type TxOption interface {
	LockOption
	DoOption
}

// PoolOption is one for those that take a connection from a pool: Do and Acquire.
type PoolOption interface {
	DoOption
	SessionOption
}

type lockConfig struct {
	timeout time.Duration // 0: as long as ctx
	polling bool
}

type doConfig struct {
	lock     lockConfig
	poolWait time.Duration
	tx       pgx.TxOptions
	also     []Key
	retries  int
}

type sessionConfig struct {
	lock     lockConfig
	poolWait time.Duration
	shared   bool
	notice   time.Duration
}

const (
	defaultPoolWait = 10 * time.Second
	defaultNotice   = time.Second
	minNotice       = 100 * time.Millisecond
)

type waitOption func(*lockConfig) error

func (o waitOption) applyLock(c *lockConfig) error       { return o(c) }
func (o waitOption) applyDo(c *doConfig) error           { return o(&c.lock) }
func (o waitOption) applySession(c *sessionConfig) error { return o(&c.lock) }

type txOption func(*lockConfig) error

func (o txOption) applyLock(c *lockConfig) error { return o(c) }
func (o txOption) applyDo(c *doConfig) error     { return o(&c.lock) }

type doOption func(*doConfig) error

func (o doOption) applyDo(c *doConfig) error { return o(c) }

type sessionOption func(*sessionConfig) error

func (o sessionOption) applySession(c *sessionConfig) error { return o(c) }

type poolOption time.Duration

func (o poolOption) applyDo(c *doConfig) error {
	c.poolWait = time.Duration(o)
	return o.check()
}

func (o poolOption) applySession(c *sessionConfig) error {
	c.poolWait = time.Duration(o)
	return o.check()
}

func (o poolOption) check() error {
	if o <= 0 {
		return invalidOption("a wait of %v for the pool, it must be positive", time.Duration(o))
	}
	return nil
}

// WithTimeout bounds the wait for the lock, not counting the wait for a connection: when
// it is over the error is ErrNotAcquired and ErrTimeout. It counts in whole milliseconds, rounded
// up. Default: as long as the context lasts. A lock_timeout of the transaction's own that is
// shorter comes first.
func WithTimeout(d time.Duration) WaitOption {
	return waitOption(func(c *lockConfig) error {
		if d <= 0 {
			return invalidOption("a time-out of %v, it must be positive: use TryLock or TryAcquire to ask once", d)
		}
		c.timeout = d
		return nil
	})
}

// WithPolling waits by asking again and again, with growing and jittered pauses of up to
// 250 ms, instead of blocking in the server. Use it where the wait may be long: a blocked
// statement holds a snapshot, for which CREATE INDEX CONCURRENTLY and vacuum wait. Pollers
// are not served in order, and learn of a release late. In the pauses a transaction of one's own is idle: keep its
// idle_in_transaction_session_timeout above them. Default: block.
func WithPolling() TxOption {
	return txOption(func(c *lockConfig) error {
		c.polling = true
		return nil
	})
}

// WithPoolWait bounds the wait for a connection of the pool; then the error is
// ErrPoolExhausted. Default 10 s.
func WithPoolWait(d time.Duration) PoolOption { return poolOption(d) }

// WithIsolation sets the transaction's isolation level. Also above READ COMMITTED the
// function sees what the lock's previous holder has committed: the snapshot is taken
// once the lock is held. Default: the server's default.
func WithIsolation(level pgx.TxIsoLevel) DoOption {
	return doOption(func(c *doConfig) error {
		switch level {
		case pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
			c.tx.IsoLevel = level
			return nil
		}
		return invalidOption("isolation level %q", level)
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
		return invalidOption("access mode %q", mode)
	})
}

// WithKeys locks these too, in one statement and in one order for everybody, so that
// transactions that lock several do not run into a deadlock.
func WithKeys(keys ...Key) DoOption {
	return doOption(func(c *doConfig) error {
		c.also = append(c.also, keys...)
		return nil
	})
}

// WithRetry runs the whole transaction again, up to n times, when the server refuses it
// for a serialization failure or a deadlock (SQLSTATE 40001 and 40P01): so the function
// runs again, and must do nothing outside the transaction that can't be repeated. Default 0.
func WithRetry(n int) DoOption {
	return doOption(func(c *doConfig) error {
		if n < 0 {
			return invalidOption("%d retries", n)
		}
		c.retries = n
		return nil
	})
}

// WithShared makes it a shared lock: it excludes exclusive ones only.
func WithShared() SessionOption {
	return sessionOption(func(c *sessionConfig) error {
		c.shared = true
		return nil
	})
}

// WithNotice sets how soon, at the latest, the session notices that its server has fallen
// silent, 100 ms at least. It asks the server four times in this time, and counts an answer
// that takes longer than half of it as a loss. A connection that is closed is noticed
// at once. Default 1 s.
func WithNotice(d time.Duration) SessionOption {
	return sessionOption(func(c *sessionConfig) error {
		if d < minNotice {
			return invalidOption("notice within %v, the least is %v", d, minNotice)
		}
		c.notice = d
		return nil
	})
}
